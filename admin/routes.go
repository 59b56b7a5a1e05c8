package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/surebus/eventbus"
)

// route is a method and a path of the handler. The table of routes is the only place where one is made: requests, the
// authorization and the OpenAPI document derive from it.
type route struct {
	method string
	path   string // {name} stands for a segment
	// actions has one action, or those of which the request needs one: its function then authorizes the one.
	actions []Action
	audit   eventbus.AuditAction // of a change; for operations that of a replay
	summary string
	serve   func(*call) (answer any, err error) // nil, nil if it has written the answer

	status int         // of the answer; 0 for 200
	body   any         // a value of the type of the JSON body, or nil
	answer any         // a value of the type of the JSON answer; nil for streams and files
	query  []parameter // its parameters
	media  string      // of a body that is not JSON
	limit  int64       // of the body in bytes; 0 for maxBody
	page   bool        // its answers and errors are HTML
	live   bool        // of a page: it has a stream, see wantsStream
	stream bool        // the request may take longer than requestTimeout
	gives  string      // the media type of an answer that is not JSON
}

// changes reports whether the route changes the bus.
func (t *route) changes() bool {
	return slices.ContainsFunc(t.actions, Action.changes)
}

// segments of a path, unescaped.
func segments(escaped string) (parts []string, ok bool) {
	for part := range strings.SplitSeq(strings.TrimPrefix(escaped, "/"), "/") {
		part, err := url.PathUnescape(part)
		if err != nil || part == "." || part == ".." {
			return nil, false
		}
		parts = append(parts, part)
	}
	return parts, true
}

// matches returns the values of the path's names, or ok false.
func (t *route) matches(parts []string) (args map[string]string, ok bool) {
	pattern := strings.Split(strings.TrimPrefix(t.path, "/"), "/")
	if len(pattern) != len(parts) {
		return nil, false
	}
	for i, p := range pattern {
		name, isName := strings.CutPrefix(p, "{")
		switch {
		case isName && parts[i] != "":
			if args == nil {
				args = make(map[string]string)
			}
			args[strings.TrimSuffix(name, "}")] = parts[i]
		case p != parts[i]:
			return nil, false
		}
	}
	return args, true
}

// find returns the route of a request. It cleans and redirects nothing: "//", "/x/../" and their escaped forms are
// unknown paths.
func find(routes []*route, method, escapedPath string) (*route, map[string]string, error) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var allow []string
	if parts, ok := segments(escapedPath); ok {
		var best *route
		var bestArgs map[string]string
		for _, t := range routes {
			args, ok := t.matches(parts)
			switch {
			case ok && t.method != method:
				allow = append(allow, t.method)
			case ok && (best == nil || len(args) < len(bestArgs)): // "letters/export" is no {id}
				best, bestArgs = t, args
			}
		}
		if best != nil {
			return best, bestArgs, nil
		}
	}
	if len(allow) == 0 {
		return nil, nil, notFound("there is no such path", "see api/v1/openapi.json for the paths")
	}
	slices.Sort(allow)
	e := &Error{Code: CodeMethodNotAllowed, Message: "the method is not allowed here", Remedy: "use " + strings.Join(allow, " or ")}
	e.header = map[string]string{"Allow": strings.Join(slices.Compact(allow), ", ")}
	return nil, nil, e
}
