// Package value holds the data model of the language: what a value is in Go, how it comes in from Go and JSON, how it is compared and written.
//
// A value is nil, a bool, a finite float64, a string of valid UTF-8, a []any of values or a map[string]any of values; nothing else is.
// Values are immutable once made and may be shared: whoever changes one changes a copy.
package value
