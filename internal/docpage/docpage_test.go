package docpage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus/internal/docpage"
)

func TestBlocks(t *testing.T) {
	page := "# Page\n\n```go\na := 1\n\tb()\n```\n\n```output\nx\n```\n\n- item\n\n  ```go\n  c()\n  ```\n\n```sh\nls\n```\n"
	blocks, err := docpage.Blocks(page)
	require.NoError(t, err)
	require.Equal(t, []docpage.Block{
		{Line: 3, Code: "a := 1\n\tb()\n", Output: "x\n"},
		{Line: 14, Code: "c()\n"},
	}, blocks)
}

func TestBlocks_Refused(t *testing.T) {
	const behindCode = "output follows at once the code that prints it"
	for _, c := range []struct{ page, problem string }{
		{"```go\na()\n", "line 1: the block has no end"},
		{"```output\nx\n```\n", "line 1: " + behindCode},
		{"```go\na()\n```\ntext\n```output\nx\n```", "line 5: " + behindCode},
	} {
		_, err := docpage.Blocks(c.page)
		require.EqualError(t, err, c.problem)
	}
}
