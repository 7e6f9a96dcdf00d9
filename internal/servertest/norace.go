//go:build !race

package servertest

const raceDetector = false
