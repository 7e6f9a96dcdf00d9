//go:build race

package suites

const raceDetector = true
