package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus/mwl"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema [provider | URI]",
		Short: "Print the JSON Schema of definitions or of provider documents, or a contract",
		Long: `Print the JSON Schema of definitions, which editors use for completion and
descriptions. With the word provider, print the JSON Schema of provider
documents, which --catalog reads. With the URI of one of the language's own
providers, print its contract.`,
		Example: `  mwl schema >flow.schema.json
  mwl schema provider >provider.schema.json
  mwl schema mwl:provider.middleware/mwl/retry/v1`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			document := json.RawMessage(mwl.Schema())
			switch {
			case len(args) == 0:
			case args[0] == "provider":
				document = mwl.ProviderSchema()
			default:
				own, err := mwl.NewCatalog()
				if err != nil {
					return err
				}
				contract, ok := own.Document(args[0])
				if !ok {
					return usage(fmt.Sprintf("write provider, or one of %v", own.URIs()), "the language has no provider %q", args[0])
				}
				document = contract
			}
			var b bytes.Buffer
			if err := json.Indent(&b, document, "", "  "); err != nil {
				return err
			}
			_, err := fmt.Fprintln(a.out, b.String())
			return err
		},
	}
}
