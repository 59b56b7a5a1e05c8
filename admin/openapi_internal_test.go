package admin

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

var update = flag.Bool("update", false, "write openapi.json")

// The document is generated from the table of routes and the Go types of the answers, so that neither can change
// without it.
func TestOpenAPI_IsThatOfTheRoutes(t *testing.T) {
	document := &document{schemas: object{}}
	want, err := json.MarshalIndent(document.of(apiRoutes()), "", "  ")
	require.NoError(t, err)
	want = append(want, '\n')
	if *update {
		require.NoError(t, os.WriteFile("openapi.json", want, 0o644)) //nolint:gosec // a source file
		return
	}
	require.True(t, bytes.Equal(want, openAPI), "openapi.json is stale: go test ./admin -run TestOpenAPI -args -update")
}

// Every route has what the authorization and the document need.
func TestZ3_EveryRouteHasActionsAndADescription(t *testing.T) {
	for _, r := range apiRoutes() {
		name := r.method + " " + r.path
		require.NotEmpty(t, r.actions, name)
		require.NotEmpty(t, r.summary, name)
		require.NotNil(t, r.serve, name)
		for _, a := range r.actions {
			require.Contains(t, Actions(), a, name)
		}
		require.Equal(t, r.method == http.MethodPost, r.changes(), "%s: changes are POST, and reads are not", name)
		require.Equal(t, r.answer == nil, r.gives != "", "%s: has an answer or a media type", name)
	}
}

type object = map[string]any

// document builds an OpenAPI document.
type document struct{ schemas object }

func (d *document) of(routes []*route) object {
	paths := object{}
	for _, r := range routes {
		item, _ := paths[r.path].(object)
		if item == nil {
			item = object{}
			paths[r.path] = item
		}
		item[strings.ToLower(r.method)] = d.operation(r)
	}
	d.ref(ErrorAnswer{})
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "eventbus admin", "version": "1",
			"description": "Paths are under the prefix of the handler. Times are RFC 3339, durations are nanoseconds. " +
				"Every answer has the header X-Request-Id. Changes need Content-Type, and x-actions lists the permissions of which a request needs one.",
		},
		"paths":      paths,
		"components": object{"schemas": d.schemas},
	}
}

func (d *document) operation(r *route) object {
	status, gives := 200, r.gives
	if r.status != 0 {
		status = r.status
	}
	content := object{}
	if r.answer != nil {
		gives = "application/json"
		content["schema"] = d.ref(r.answer)
	}
	operation := object{
		"summary": r.summary, "operationId": operationID(r), "x-actions": r.actions,
		"responses": object{
			strconv.Itoa(status): object{"description": r.summary, "content": object{gives: content}},
			"default":            object{"description": "an error", "content": object{"application/json": object{"schema": d.ref(ErrorAnswer{})}}},
		},
	}
	parameters := []object{}
	for part := range strings.SplitSeq(r.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			parameters = append(parameters, object{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	for _, p := range r.query {
		schema := object{"type": p.kind}
		if p.kind == "date-time" || p.kind == "uuid" {
			schema = object{"type": "string", "format": p.kind}
		}
		parameters = append(parameters, object{"name": p.name, "in": "query", "schema": schema})
	}
	if len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	switch {
	case r.body != nil:
		operation["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": d.ref(r.body)}}}
	case r.media != "":
		operation["requestBody"] = object{"required": true, "content": object{r.media: object{}}}
	}
	return operation
}

// operationID returns the name of the function that serves the route's path: "getLettersIdPayload".
func operationID(r *route) string {
	id := strings.ToLower(r.method)
	for _, word := range strings.FieldsFunc(strings.TrimPrefix(r.path, "/api/v1"), func(r rune) bool { return strings.ContainsRune("/{}.", r) }) {
		id += strings.ToUpper(word[:1]) + word[1:]
	}
	return id
}

// ref returns the schema of a value's type. Structs are components.
func (d *document) ref(value any) object { return d.schema(reflect.TypeOf(value)) }

var enums = map[reflect.Type][]any{
	reflect.TypeFor[OperationAction](): {ReplayMatching, PurgeMatching},
	reflect.TypeFor[OperationState]():  {OperationRunning, OperationDone, OperationStopped, OperationCancelled, OperationFailed},
	reflect.TypeFor[Code]():            codes(),
}

func codes() (all []any) {
	for code := range statuses {
		all = append(all, string(code))
	}
	slices.SortFunc(all, func(x, y any) int { return strings.Compare(x.(string), y.(string)) })
	return all
}

func (d *document) schema(t reflect.Type) object {
	if values := enums[t]; values != nil {
		return object{"type": "string", "enum": values}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return object{"description": "any JSON value"}
	case reflect.TypeFor[eventbus.EventID](), reflect.TypeFor[eventbus.LetterID]():
		return object{"type": "string", "format": "uuid"}
	case reflect.TypeFor[eventbus.EventMetadata]():
		return object{"type": "object", "additionalProperties": object{"type": "string"}}
	}
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.schema(t.Elem())
	case reflect.Interface: // a payload
		return d.schema(reflect.TypeFor[HiddenPayload]())
	case reflect.Slice:
		return object{"type": []string{"array", "null"}, "items": d.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Struct:
		name := t.Name()
		if _, known := d.schemas[name]; !known {
			d.schemas[name] = nil // a type may contain itself
			d.schemas[name] = d.structSchema(t)
		}
		return object{"$ref": "#/components/schemas/" + name}
	}
	panic("no schema for " + t.String())
}

func (d *document) structSchema(t reflect.Type) object {
	properties, required := object{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		properties[name] = d.schema(f.Type)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}
