// Package retryspec reads retry policies that are written as JSON, so that they can
// be changed without a build and shared between services and languages.
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
// What they return goes into a bus:
//
//	eventbus.Retry(document.Policy())
//	eventbus.RetryRules(rules...)
//
// Both read strictly. What is misspelt, out of its bounds or there twice is an *Error
// that has its path, its value and what was expected. PolicySchema and RulesSchema
// are the formats as JSON Schemas, for editors and other languages.
//
// # The default retries only ValueError
//
// A document that does not say which errors to retry, even {}, retries those named
// "ValueError" and no others. Hardly any error in Go has that name: with such a
// document, the first failure is the last one. Say what is to be retried, and give
// the errors of other packages their names:
//
//	eventbus.New(
//		eventbus.WithErrorName(context.DeadlineExceeded, "TimeoutError"),
//		eventbus.WithErrorTypeName[*net.OpError]("ConnectionError"),
//	)
//
// An error without another name has that of its Go type, without its package.
//
// # Counting attempts
//
// max_attempts counts the first run: 5 are 4 retries. Bounds, Delay and Stopped
// count attempts from 0, as the format does; on the bus the first run is attempt 1.
//
// # Files
//
// Open reads a file, and File.Watch reads it again when it changes, while the bus
// runs. The program in the directory check shows what a file says:
//
//	go run github.com/surebus/eventbus/retryspec/check retry.json
package retryspec
