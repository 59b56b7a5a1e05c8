// Package conformance reads and runs corpora of conformance cases for implementations of
// the Metolia Workflow Language. The command "mwl conform DIR" runs a corpus.
//
// # Corpora
//
// A corpus is a directory with a directory for each case, which has:
//
//	case.json                             what the case shows, and its scenarios
//	definition.json                       the definition
//	scenarios/<name>/input.json           the input
//	scenarios/<name>/arguments.json       the arguments, an object, if there are any
//	scenarios/<name>/expected-result.json the Result to compare with
//	README.md                             a text for readers, if there is one
//
// A case with any other file is malformed. Names that begin with a dot are ignored, and so
// are files beside the cases. A file has 8 MiB at most. JSON is read strictly: a member
// that repeats, or text that is not UTF-8, makes the case malformed.
//
// case.json is an object with these members, all of them required:
//
//	description  a text
//	profiles     the URIs of the language's conformance profiles that the case needs:
//	             https://mwl.dev/v0.1/conformance/core always, and
//	             https://mwl.dev/v0.1/conformance/expressions/cel, or one of strings,
//	             lists, sets, encoders and math below that
//	marks        ["temporal"] if the outcome depends on elapsed time, else []
//	scenarios    an object with a member for each directory of scenarios: its name, and
//	             an object that may have a description
//
// The name of a scenario is made of lower-case letters and digits, in words joined by "-".
//
// # Results
//
// A success must have the expected value. A failure must have the members that
// expected-result.json has, and may have others. An expected null is also met by an absent
// member, and previous is compared as a failure. details are compared exactly, but Results
// inside them are compared as Results.
//
// # Time
//
// [Read] reads a corpus, [Case.Run] runs a case in virtual time: the clock advances to the
// next timer when the process is idle. While a goroutine computes, the clock stands still.
package conformance
