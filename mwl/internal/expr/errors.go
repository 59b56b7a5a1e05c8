package expr

import (
	"errors"
	"fmt"
	"strings"
)

// The failure codes that an evaluation can end in.
const (
	EvaluationError = "System.ExpressionEvaluationError"
	Unrepresentable = "System.UnrepresentableValue"
)

// ErrInterrupted is what Eval's error wraps when its context ended while a long evaluation ran; the context's cause is wrapped beside it.
var ErrInterrupted = errors.New("the evaluation was interrupted")

// Fault says why an expression has no value.
type Fault struct {
	// Code is EvaluationError when the expression could not be evaluated, and Unrepresentable when what it gave is not a value of the data model.
	Code string
	// Text names the offence, and the remedy where there is one.
	Text string
	// Source is the expression without its delimiters.
	Source string
	// Pointer leads from the field to the expression, as a JSON pointer: "" when the expression is the whole field.
	Pointer string

	limit int
}

// Error is fit for the message of a failure.
func (f *Fault) Error() string {
	where := ""
	if f.Pointer != "" {
		where = " at " + clip(f.Pointer, 128)
	}
	return clip(fmt.Sprintf("expression %s%s: %s", quote(f.Source), where, f.Text), f.limit)
}

// SyntaxError says where and why an expression cannot be compiled. It makes the definition invalid.
type SyntaxError struct {
	// Offset counts the bytes of the string, delimiters included, before the offence.
	Offset int
	// Line and Column of the offence within the string, from 1; a column is a character.
	Line, Column int
	// Text names the offence and the remedy.
	Text string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("the expression cannot be read: line %d, column %d: %s", e.Line, e.Column, e.Text)
}

func quote(source string) string {
	return "{{ " + clip(strings.Join(strings.Fields(source), " "), 160) + " }}"
}

// clip shortens a text to about limit bytes, at the edge of a character.
func clip(s string, limit int) string {
	if limit <= 0 || len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
