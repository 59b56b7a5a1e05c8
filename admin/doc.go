// Package admin serves what operators need of an event bus over HTTP: dead letters, subscriptions, events and the audit,
// as pages for browsers, and as a JSON API under /api/v1.
//
// # Usage
//
//	authorize, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: os.Getenv("ADMIN_PASSWORD")})
//	handler, err := admin.New(bus, admin.WithPrefix("/admin"), admin.WithHosts("shop.example.com"), admin.WithAuthorizer(authorize))
//	mux.Handle("/admin/", handler)
//
// The handler needs no other route and no middleware. It does not listen. Give your http.Server timeouts:
// ReadHeaderTimeout, IdleTimeout and MaxHeaderBytes. Live pages are long requests, so leave WriteTimeout 0: the handler
// bounds its writes itself. Shut the bus down before the server, or the server waits for live pages.
//
// # Security
//
// Without options, the handler serves loopback peers under the names localhost, 127.0.0.1 and [::1], shows no
// payloads, and changes nothing. WithAuthorizer decides for each request and Action who may do what. WithHosts adds
// host names. ReadOnly wins over every authorizer. Use TLS: browsers send passwords with each request, and send no
// usable origin without it.
//
// Changes from other sites are refused, as are forms without an origin. The audit of the bus has every change and
// every denied change with the operator, the address and the request id, before the change happens.
//
// Answers have no payload, but its size and a hash. Operators with ActionViewPayload read one payload at a time, or an export.
// WithRedactor changes the texts that handlers and events bring along. Answers to errors have a stable Code, and the
// request id of the log.
//
// # Limits
//
// A body has up to 64 KiB, an edited payload 2 MiB, an import 64 MiB, a query string 4 KiB, a page 500 entries, and a
// bulk operation 1,000,000 letters. Four bulk operations run at a time. A request takes up to 30 s, except for
// exports, imports and live streams.
//
// # Pages
//
// The pages work without JavaScript. The address of a list has its filters, so a link can be shared. Pages offer only what the
// operator may do, and have at most 100 KB besides a payload. Characters that cannot be seen are shown as escapes.
//
// The overview has a line for each cause of dead letters, with its growth and a link to its replay, and what else needs
// attention. The navigation counts both. All figures of a page are of one time.
//
// Subscriptions have charts of an hour by minutes and of a day by quarters of an hour. They begin with the handler, are in memory, and
// are kept for the first 1,000 subscriptions, in about 6 KB each.
//
// # Live pages
//
// A small script renews pages that show figures once a second, marks what has changed, and says when the connection is lost. A page
// that is hidden has no connection. Asked for with Accept: text/event-stream, such a page is the stream of its content.
//
// 256 streams are open at a time. When all are taken, an operator gets one of those of the operator who has most. One who may
// change something gets up to 64 of those who may only look. A stream ends within 10 s when its credentials are no longer valid.
// Rendering has a bounded share of the time: many different pages, and pages that are expensive to
// render, are renewed less often.
//
// # Bulk operations
//
// POST /api/v1/operations replays or purges the letters that match a query, or cancels, retries or gives up the events. It states the number of letters that the operator has
// seen in the preview, and does not begin if another number matches. The letters are fixed by the query's until: send the
// newest of the preview, so that letters that die later do not change the number. Events are fixed by published_until. They settle
// meanwhile, so only a larger number than the stated one is refused. The
// operation runs in the process, whatever becomes of the request, until it is done, cancelled, or the bus is shut down.
package admin
