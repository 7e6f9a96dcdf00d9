//go:build !race

package ways

const raceDetector = false
