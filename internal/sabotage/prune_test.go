package sabotage_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/sabotage"
)

func TestPrune_OnlyTheTestsThatRun(t *testing.T) {
	const source = `package p_test

import (
	"strings"
	"testing"

	"example.com/much/v2"
	more "example.com/other"
	_ "example.com/registers"
)

func TestMain(m *testing.M) {}

// TestA needs much.
func TestA(t *testing.T) {
	much.Do(more.X)
}

func TestB(t *testing.T) { helper() }

func helper() string { return strings.ToLower("X") }

func BenchmarkA(b *testing.B) {}
`
	const left = `package p_test

import (
	"strings"
	"testing"



	_ "example.com/registers"
)

func TestMain(m *testing.M) {}

// TestA needs much.




func TestB(t *testing.T) { helper() }

func helper() string { return strings.ToLower("X") }


`
	pruned, err := sabotage.Prune([]byte(source), sabotage.Selects("^TestB$/^Sub|x(y|z)"))
	require.NoError(t, err)
	require.Equal(t, left, regexp.MustCompile(`[\t ]+\n`).ReplaceAllString(string(pruned), "\n"))
	all, err := sabotage.Prune([]byte(source), sabotage.Selects("A|B"))
	require.NoError(t, err)
	require.Equal(t, source, string(all))
	_, err = sabotage.Prune([]byte("no Go"), sabotage.Selects("A"))
	require.Error(t, err)
}

func TestSelects(t *testing.T) {
	for run, tests := range map[string][]string{
		"^TestA":               {"TestA", "TestAB"},
		"^TestA$/^Sub$":        {"TestA"},
		"^TestA$/x|^TestC":     {"TestA", "TestC"},
		"^Test(A|C)$|^TestAB$": {"TestA", "TestAB", "TestC"},
		"[|/]|^TestC":          {"TestC"},
	} {
		var selected []string
		for _, test := range []string{"TestA", "TestAB", "TestB", "TestC"} {
			if sabotage.Selects(run)(test) {
				selected = append(selected, test)
			}
		}
		require.Equal(t, tests, selected, run)
	}
}
