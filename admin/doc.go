// Package admin serves an event bus to its operators over HTTP: dead letters, subscriptions, events and the audit, as
// pages for browsers and as a JSON API under /api/v1.
//
//	authorize, err := admin.BasicAuth(admin.Operator{Name: "anna", Secret: os.Getenv("ADMIN_PASSWORD")})
//	if err != nil {
//		return err
//	}
//	handler, err := admin.New(bus, admin.WithPrefix("/admin"), admin.WithHosts("shop.example.com"), admin.WithAuthorizer(authorize))
//	if err != nil {
//		return err
//	}
//	mux.Handle("/admin/", handler)
//
// The handler needs no other route and no middleware, and does not listen itself. Give your http.Server timeouts:
// ReadHeaderTimeout, IdleTimeout and MaxHeaderBytes. Leave WriteTimeout 0, because live pages are long requests: the
// handler bounds its writes itself. Shut the bus down before the server. Otherwise the server waits for live pages.
//
// # Security
//
// Without options, the handler serves loopback peers under the names localhost, 127.0.0.1 and [::1], shows no
// payloads, and changes nothing. WithAuthorizer sets who may perform which Action. WithHosts adds host names. ReadOnly
// overrides every authorizer. Use TLS: browsers send passwords with each request, and send no usable origin without TLS.
//
// The handler rejects changes from other sites, and forms without an origin. The audit of the bus has every change and
// every denied change with the operator, the address and the request id, before the change happens.
//
// Answers have the size and a hash of a payload, but not the payload. Operators with ActionViewPayload read one payload
// at a time, or an export. WithRedactor replaces texts of handlers and events. Error answers have a stable Code, and
// the request id of the log.
//
// # Limits
//
// A body has up to 64 KiB, an edited payload 2 MiB, an import 64 MiB, a query string 4 KiB, a page 500 entries, and a
// bulk operation 1,000,000 letters. Four bulk operations run at a time. A request takes up to 30 s, except for
// exports, imports and live streams.
//
// # Pages
//
// The pages work without JavaScript. The address of a list contains its filters, so operators can share links. Pages
// offer only the actions that the operator may perform. They have at most 100 KB besides a payload. Invisible
// characters are shown as escapes.
//
// The overview has a line for each cause of dead letters, with its growth and a link to its replay. It also lists other
// conditions that need attention. The navigation counts both. All figures of a page belong to one instant.
//
// Subscriptions have charts of an hour by minutes and of a day by quarters of an hour. The charts begin when the handler
// is made, and are in memory: about 6 KB for each of the first 1,000 subscriptions.
//
// # Live pages
//
// A small script renews pages with figures once a second, marks changes, and shows when the connection is lost. A
// hidden page has no connection. A request with Accept: text/event-stream receives such a page as a stream.
//
// At most 256 streams are open at a time. When all are in use, a further operator takes a stream of the operator with
// most streams. Operators who may change something take up to 64 streams of operators who may only view. A stream ends
// within 10 s when its credentials become invalid. Rendering has a bounded share of the time: many different or
// expensive pages are renewed less often.
//
// # Bulk operations
//
// POST /api/v1/operations replays or purges the letters that match a query, or cancels, retries or gives up events. The
// request has the number of letters from the operator's preview. The operation does not begin if another number
// matches. Until in the query fixes the set of letters: send the newest of the preview, so that later letters do not
// change the number. PublishedUntil fixes the set of events. Because events settle meanwhile, only a larger number than
// the expected one is rejected. The operation runs in the process, independently of the request. It ends when it is
// done or cancelled, or when the bus shuts down.
package admin
