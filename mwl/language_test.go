package mwl_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/mwl"
	"github.com/surebus/eventbus/mwl/internal/expr"
)

func languagePage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("LANGUAGE.md")
	require.NoError(t, err)
	return string(page)
}

// TestLanguagePageLinks requires that each file that the page links to is there.
func TestLanguagePageLinks(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(languagePage(t), -1)
	require.Greater(t, len(links), 80)
	for _, link := range links {
		if !strings.HasPrefix(link[1], "https://") {
			_, err := os.Stat(filepath.FromSlash(link[1]))
			require.NoError(t, err)
		}
	}
}

// TestLanguagePageCodes compares the codes of the page with those of the package.
func TestLanguagePageCodes(t *testing.T) {
	page := languagePage(t)
	source, err := os.ReadFile("result.go")
	require.NoError(t, err)
	declared := map[string]bool{"Provider.Call.<CodePrefix>.Error": true}
	for _, code := range regexp.MustCompile(`Code\w+ += "([^"]+)"`).FindAllStringSubmatch(string(source), -1) {
		declared[code[1]] = true
		require.Contains(t, page, "| `"+code[1]+"` |")
	}
	require.Greater(t, len(declared), 10)
	for _, code := range regexp.MustCompile("`((?:System|Provider|Mwl)\\.[^`]+)`").FindAllStringSubmatch(page, -1) {
		require.True(t, declared[code[1]], "there is no code %s", code[1])
	}
}

// TestLanguagePageFunctions compiles a call of each function of the page.
func TestLanguagePageFunctions(t *testing.T) {
	compiler, err := expr.NewCompiler(expr.Limits{})
	require.NoError(t, err)
	functions := regexp.MustCompile("`([a-zA-Z0-9.]+)\\(\\)`").FindAllStringSubmatch(languagePage(t), -1)
	require.Greater(t, len(functions), 50)
	for _, f := range functions {
		if strings.HasPrefix(f[1], "mwl.") {
			continue
		}
		arguments := "vars.x"
		if f[1] == "now" || f[1] == "wallTime" {
			arguments = ""
		}
		program, err := compiler.Compile("{{ "+f[1]+"("+arguments+") }}", expr.Everywhere)
		require.NoError(t, err)
		require.Empty(t, program.Names(), f[1])
	}
}

// TestLanguagePageNamesEveryProvider requires that the page has each of the
// language's own providers.
func TestLanguagePageNamesEveryProvider(t *testing.T) {
	catalog, err := mwl.NewCatalog()
	require.NoError(t, err)
	for _, uri := range catalog.URIs() {
		require.Contains(t, languagePage(t), "`"+uri+"`")
	}
}

// TestReadmeDefinitionLoads loads the definition that the README shows.
func TestReadmeDefinitionLoads(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(readme), "```json\n")
	require.True(t, ok)
	source, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	charge, err := mwl.ParseCallProvider(providerDocument(t, "call.json"))
	require.NoError(t, err)
	charge.Call = func(context.Context, mwl.CallRequest) (mwl.CallResponse, error) {
		retryable := true
		return mwl.CallResponse{}, &mwl.Failure{Code: "Provider.Call.Charge.Declined", Retryable: &retryable}
	}
	catalog, err := mwl.NewCatalog(charge)
	require.NoError(t, err)
	def, err := mwl.Load([]byte(source), mwl.WithCatalog(catalog))
	require.NoError(t, err)
	require.Empty(t, def.Warnings())
	synctest.Test(t, func(t *testing.T) {
		// A failure that is retried arrives as the Retry's, and is refused, too.
		result := def.Execute(t.Context(), map[string]any{"total": 5, "id": "7"})
		require.Equal(t, []string{"error Order.Refused", "error " + mwl.CodeRetryExhausted, "error Provider.Call.Charge.Declined"}, envelope(result.Failure))
	})
}
