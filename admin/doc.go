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
// The pages work without JavaScript. A small script updates the overview and the progress of operations. The address of a
// list has its filters, so a link can be shared. Pages offer only what the operator may do, and have at most 100 KB
// besides a payload. Characters that cannot be seen are shown as escapes.
//
// # Bulk operations
//
// POST /api/v1/operations replays or purges what matches a query. It states the number of letters that the operator has
// seen in the preview, and does not begin if another number matches. The letters are fixed by the query's until. The
// operation runs in the process, whatever becomes of the request, until it is done, cancelled, or the bus is shut down.
package admin
