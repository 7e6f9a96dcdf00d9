//go:build race

package ways

const raceDetector = true
