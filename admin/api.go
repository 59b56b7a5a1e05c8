package admin

import (
	"net/http"

	"github.com/surebus/eventbus"
)

// maxEdit and maxImport bound the bodies that have payloads.
const (
	maxEdit   = 2 << 20
	maxImport = 64 << 20
)

const operationsPath = "/api/v1/operations"

// apiRoutes returns the table of the JSON API.
func apiRoutes() []*route {
	var (
		view    = []Action{ActionView}
		payload = []Action{ActionViewPayload}
		bulk    = []Action{ActionReplay, ActionPurge, ActionCancel, ActionRetry, ActionGiveUp}

		letters    = letterParameters(new(eventbus.LetterQuery))
		filter     = filterParameters(new(eventbus.LetterQuery))
		dispatches = dispatchParameters(new(eventbus.DispatchQuery))
		audit      = auditParameters(new(eventbus.AuditQuery))
		explain    = explainParameters(new(string))
		list       = windowParameters(new(window))
		keys       = keyParameters(new(string), new(string))
	)
	const get, post = http.MethodGet, http.MethodPost
	return []*route{
		{
			method: get, path: "/api/v1/overview", actions: view, serve: (*call).getOverview, answer: Overview{},
			summary: "the state of the bus, and the last hour by minutes",
		},
		{
			method: get, path: "/api/v1/live", actions: view, serve: (*call).getLive, gives: "text/event-stream", stream: true,
			summary: "the overview once a second, without types and with one minute, as server-sent events",
		},
		{
			method: get, path: "/api/v1/openapi.json", actions: view, serve: (*call).getOpenAPI, gives: "application/json",
			summary: "this document",
		},

		{
			method: get, path: "/api/v1/letters", actions: view, serve: (*call).listLetters, query: letters, answer: eventbus.LetterPage{},
			summary: "dead letters, newest first",
		},
		{
			method: get, path: "/api/v1/letters/export", actions: payload, serve: (*call).exportLetters, query: filter, gives: "application/jsonl", stream: true,
			summary: "dead letters with their payloads, oldest first, one a line",
		},
		{
			method: post, path: "/api/v1/letters/import", actions: []Action{ActionImport}, audit: eventbus.AuditImport, serve: (*call).importLetters, answer: eventbus.ImportReport{},
			query: importParameters(new(string)), media: "application/jsonl", limit: maxImport, stream: true, summary: "adds the letters of an export, all or none",
		},
		{
			method: get, path: "/api/v1/letters/{id}", actions: view, serve: (*call).getLetter, answer: eventbus.DeadLetter{},
			summary: "a dead letter",
		},
		{
			method: get, path: "/api/v1/letters/{id}/payload", actions: payload, serve: (*call).getPayload, gives: "application/octet-stream",
			summary: "the encoded payload",
		},
		{
			method: post, path: "/api/v1/letters/{id}/replay", actions: []Action{ActionReplay}, audit: eventbus.AuditReplay, serve: (*call).replay, body: ChangeRequest{}, answer: Done{},
			summary: "replays a dead letter",
		},
		{
			method: post, path: "/api/v1/letters/{id}/edit", actions: []Action{ActionEdit}, audit: eventbus.AuditReplayEdited, serve: (*call).edit, body: EditRequest{}, answer: Done{}, limit: maxEdit,
			summary: "replays a dead letter with another payload",
		},
		{
			method: post, path: "/api/v1/letters/{id}/purge", actions: []Action{ActionPurge}, audit: eventbus.AuditPurge, serve: (*call).purge, body: ChangeRequest{}, answer: Done{},
			summary: "deletes a dead letter",
		},
		{
			method: get, path: "/api/v1/groups", actions: view, serve: (*call).listGroups, query: append(filter[:len(filter):len(filter)], list...), answer: GroupPage{},
			summary: "groups of dead letters with the same cause, largest first",
		},
		{
			method: get, path: "/api/v1/preview", actions: view, serve: (*call).getPreview, query: filter, answer: eventbus.ReplayPreview{},
			summary: "what a bulk replay would do",
		},

		{
			method: get, path: operationsPath, actions: view, serve: (*call).listOperations, query: list, answer: OperationPage{},
			summary: "bulk operations, newest first",
		},
		{
			method: post, path: operationsPath, actions: bulk, audit: eventbus.AuditReplayMatching, serve: (*call).postOperation, body: OperationRequest{}, answer: Operation{}, status: http.StatusAccepted,
			summary: "begins a bulk replay or purge, or an action on the events that match; the action needs its own permission",
		},
		{
			method: get, path: operationsPath + "/{id}", actions: view, serve: (*call).getOperation, answer: Operation{},
			summary: "the progress or the report of a bulk operation",
		},
		{
			method: post, path: operationsPath + "/{id}/cancel", actions: bulk, audit: eventbus.AuditReplayMatching, serve: (*call).postCancelOperation, body: ChangeRequest{}, answer: Operation{},
			summary: "cancels a bulk operation; what is processed stays processed",
		},

		{
			method: get, path: "/api/v1/subscriptions", actions: view, serve: (*call).listSubscriptions, query: subscriptionParameters(new(subscriptionQuery)), answer: SubscriptionPage{},
			summary: "subscriptions, with what they did in the last hour",
		},
		{
			method: get, path: "/api/v1/subscriptions/{name}", actions: view, serve: (*call).getSubscription, answer: eventbus.SubscriptionMetrics{},
			summary: "a subscription",
		},
		{
			method: get, path: "/api/v1/subscriptions/{name}/history", actions: view, serve: (*call).getHistory, query: historyParameters(new(bool)), answer: SubscriptionHistory{},
			summary: "what a subscription did in the last hour by minutes, or in the last day by quarters of an hour",
		},
		directive("pause", eventbus.AuditPause, "holds its deliveries until resume"),
		directive("hold-until", eventbus.AuditHoldUntil, "holds its deliveries until a time"),
		directive("resume", eventbus.AuditResume, "ends pause, hold-until and, in the process of the handlers, a hang"),
		directive("trip", eventbus.AuditTrip, "opens its circuit"),
		directive("reset", eventbus.AuditReset, "closes its circuit"),
		{
			method: get, path: "/api/v1/orphans", actions: view, serve: (*call).listOrphans, query: orphanParameters(new(window)), answer: OrphanPage{},
			summary: "names without a subscription for which the store has deliveries",
		},
		{
			method: post, path: "/api/v1/subscriptions/{name}/retire", actions: []Action{ActionRetire}, audit: eventbus.AuditRetire, serve: (*call).postRetire, body: RetireRequest{}, answer: eventbus.RetireReport{},
			summary: "ends a name that no bus has any more, with its deliveries",
		},

		{
			method: get, path: "/api/v1/events", actions: view, serve: (*call).findEvent, query: keys, answer: eventbus.EventStatus{},
			summary: "what became of the event of a type with an idempotency key",
		},
		{
			method: get, path: "/api/v1/events/{id}", actions: view, serve: (*call).getEvent, answer: eventbus.EventStatus{},
			summary: "what became of an event",
		},
		eventVerb("cancel", eventbus.AuditCancel, ActionCancel, "ends an event that has not settled, wherever it is, without a dead letter"),
		eventVerb("retry", eventbus.AuditRetryNow, ActionRetry, "lets deliveries of an event go on that wait"),
		eventVerb("give-up", eventbus.AuditGiveUp, ActionGiveUp, "turns what waits of an event into dead letters"),
		{
			method: get, path: "/api/v1/dispatches", actions: view, serve: (*call).listDispatches, query: dispatches, answer: eventbus.DispatchPage{},
			summary: "dispatches that have not settled, oldest first",
		},
		{
			method: get, path: "/api/v1/dispatches/preview", actions: view, serve: (*call).getActionPreview, query: dispatchFilter(new(eventbus.DispatchQuery)), answer: eventbus.ActionPreview{},
			summary: "what a bulk action on events would act on",
		},
		{
			method: get, path: "/api/v1/explain", actions: view, serve: (*call).getPlan, query: explain, answer: eventbus.Plan{},
			summary: "how an event of a type would be dispatched",
		},
		{
			method: get, path: "/api/v1/audit", actions: view, serve: (*call).listAudit, query: audit, answer: eventbus.AuditPage{},
			summary: "what operators did, newest first",
		},
	}
}

// eventVerb returns the route of an action on an event that has not settled.
func eventVerb(name string, audit eventbus.AuditAction, action Action, summary string) *route {
	return &route{
		method: http.MethodPost, path: "/api/v1/events/{id}/" + name, actions: []Action{action}, audit: audit,
		serve: (*call).postEventVerb, body: EventRequest{}, answer: eventbus.ActionReport{}, summary: summary,
	}
}

// directive returns the route of a directive to a subscription.
func directive(name string, action eventbus.AuditAction, summary string) *route {
	return &route{
		method: http.MethodPost, path: "/api/v1/subscriptions/{name}/" + name, actions: []Action{ActionControl}, audit: action,
		serve: (*call).postDirective, body: ControlRequest{}, answer: eventbus.SubscriptionMetrics{}, summary: summary,
	}
}
