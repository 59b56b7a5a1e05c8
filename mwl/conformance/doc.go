// Package conformance reads and runs corpora of conformance cases for implementations of
// the Metolia Workflow Language.
//
// A corpus is a directory with a directory for each case, which has:
//
//	case.json                             description, profiles, marks, scenarios by name
//	definition.json                       the definition
//	scenarios/<name>/input.json           the input
//	scenarios/<name>/arguments.json       the arguments, if there are any
//	scenarios/<name>/expected-result.json the Result to compare with
//
// [Read] reads a corpus, [Case.Run] runs a case in virtual time.
package conformance
