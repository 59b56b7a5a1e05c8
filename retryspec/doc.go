// Package retryspec reads retry policies from JSON files, which you can change without a build,
// and share between services and languages.
//
//	file, err := retryspec.Open("billing.json", retryspec.Parse)
//	if err != nil {
//		return err // with the path, the value and the expectation
//	}
//	err = file.Follow(func(d retryspec.Document) error {
//		return billing.SetRetry(d.Policy()) // billing is a *eventbus.Subscription
//	})
//	if err != nil {
//		return err
//	}
//	go file.Watch(ctx, 5*time.Second, report) // applies a changed file
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
// Without a file, pass the results to a bus: eventbus.Retry(document.Policy()), or
// eventbus.RetryRules(rules...).
//
// Both parsers are strict. A member that is misspelt, out of its bounds or repeated is an
// *Error with the path, the value and the expectation. PolicySchema and RulesSchema are
// JSON Schemas of the formats, for editors and other languages.
//
// # The default retries only ValueError
//
// A document without retry.include_errors, even {}, retries only errors named "ValueError". Hardly any error in Go has
// that name, so with such a document the first failure is the last one. List the errors to retry, or AllErrors
// ("TaskError") for every error, and register names for the errors of other packages:
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
// Open reads a regular file of at most 1 MiB, and File.Watch reads it again when it changes.
// Unknown members at the top level of a document are ignored, and
// Document.Ignored lists them. The program in the directory check shows the effect of a file,
// and with -strict it fails on ignored members:
//
//	go run github.com/surebus/eventbus/retryspec/check -strict retry.json
package retryspec
