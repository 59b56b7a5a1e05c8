//go:build !race

package mwl_test

const raceEnabled = false
