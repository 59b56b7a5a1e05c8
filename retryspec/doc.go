// Package retryspec reads retry policies from JSON. Such policies can be changed without a
// build, and shared between services and languages.
//
// There are two formats. Parse reads a policy document:
//
//	{
//	  "version": 1,
//	  "stop":  {"max_attempts": 5, "max_delay": 3600},
//	  "wait":  {"strategy": "exponential_jitter", "initial_delay": 1, "multiplier": 2, "max_delay": 300},
//	  "retry": {"include_errors": ["TimeoutError"], "exclude_errors": []}
//	}
//
// ParseRules reads ordered rules, each with its own budget and delays:
//
//	{
//	  "policies": [
//	    {
//	      "match":    {"codes": ["Bank.*"], "types": ["timeout"], "retryable": true},
//	      "attempts": 3,
//	      "backoff":  {"initial": "PT0.5S", "rate": 2, "max": "PT1M", "jitter": "full"}
//	    }
//	  ]
//	}
//
// Pass the results to a bus:
//
//	eventbus.Retry(document.Policy())
//	eventbus.RetryRules(rules...)
//
// Both parsers are strict. A member that is misspelt, out of its bounds or repeated is an
// *Error with the path, the value and the expectation. PolicySchema and RulesSchema are
// JSON Schemas of the formats, for editors and other languages.
//
// # The default retries only ValueError
//
// A document without retry.include_errors, even {}, retries only errors named "ValueError".
// Hardly any error in Go has that name, so with such a document the first failure is the
// last one. List the errors to retry, or AllErrors ("TaskError") for all of them, and register names for the errors of other packages:
//
//	eventbus.New(
//		eventbus.WithErrorName(context.DeadlineExceeded, "TimeoutError"),
//		eventbus.WithErrorTypeName[*net.OpError]("ConnectionError"),
//	)
//
// The default name of an error is the name of its Go type, without the package.
//
// # Counting attempts
//
// max_attempts includes the first run: 5 attempts are 4 retries. Bounds, Delay and Stopped
// count attempts from 0, as the format does. On the bus, the first run is attempt 1.
//
// # Files
//
// Open reads a regular file of at most 1 MiB, and File.Watch reads it again when it changes,
// while the bus runs. Unknown members at the top level of a document are ignored, and
// Document.Ignored lists them. The program in the directory check shows the effect of a file,
// and with -strict it fails on ignored members:
//
//	go run github.com/surebus/eventbus/retryspec/check -strict retry.json
package retryspec
