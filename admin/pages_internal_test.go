package admin

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
)

// Every page has an action, every form has an action of the audit, and nothing but a form changes the bus.
func TestZ3_EveryPageHasActions(t *testing.T) {
	for _, r := range pageRoutes() {
		name := r.method + " " + r.path
		require.NotEmpty(t, r.actions, name)
		require.NotNil(t, r.serve, name)
		for _, a := range r.actions {
			require.Contains(t, Actions(), a, name)
		}
		form := r.method == http.MethodPost
		require.Equal(t, form, r.audit != "", name)
		require.Equal(t, form, r.media == formMedia, name)
		require.True(t, r.page, name)
		if form {
			require.True(t, r.changes(), name)
		}
	}
}

// All pages with each permission: a page answers 403 exactly if the operator has none of its actions.
func TestZ3_PagesByPermission(t *testing.T) {
	bus, err := eventbus.New()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bus.Shutdown(t.Context())) })
	for _, action := range Actions() {
		h, err := New(bus, WithAuthorizer(func(_ *http.Request, a Action) (Principal, error) {
			if a != action {
				return Principal{Name: "anna"}, ErrForbidden
			}
			return Principal{Name: "anna"}, nil
		}))
		require.NoError(t, err)
		for _, route := range pageRoutes() {
			path := strings.NewReplacer("{id}", eventbus.NewEventID().String(), "{name}", "none", "{file}", "app.css").Replace(route.path)
			r := httptest.NewRequestWithContext(t.Context(), route.method, path, http.NoBody)
			r.Host, r.RemoteAddr = "localhost", "127.0.0.1:50000"
			r.Header.Set("Content-Type", formMedia)
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			want := !slices.Contains(route.actions, action)
			assert.Equal(t, want, w.Code == http.StatusForbidden, "%s %s with %s: %d", route.method, path, action, w.Code)
		}
	}
}

// Each reason has a text that says what to do.
func TestReasonTexts_HaveAllReasons(t *testing.T) {
	for _, reason := range eventbus.Reasons() {
		require.NotEmpty(t, reasonTexts[reason], reason)
	}
	require.Len(t, reasonTexts, len(eventbus.Reasons()))
}
