// Package strictjson reads one JSON document strictly, into a tree whose nodes
// know where in the document they stand.
//
// Beyond RFC 8259 it refuses what readers of JSON disagree about: member names
// that repeat within an object, invalid UTF-8, escapes of lone surrogates,
// numbers that a float64 cannot hold, and documents that are too large or
// nested too deeply.
package strictjson
