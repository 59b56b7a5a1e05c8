// Package expr compiles and evaluates the expressions of a definition: CEL between {{ and }}, with the language's rules for numbers, null, time and what may leave an
// expression.
//
// A [Compiler] makes a [Program] of one expression, or a [Template] of a whole field in which any string may be one. Programs and templates are immutable and safe for
// concurrent use. Evaluation reads a [Scope] and gives a value (see package value) that may share its parts with what was read.
package expr
