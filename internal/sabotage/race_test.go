//go:build race

package sabotage_test

const raceEnabled = true
