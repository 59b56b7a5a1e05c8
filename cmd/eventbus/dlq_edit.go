package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/cmd/eventbus/internal/term"
)

func (a *app) dlqEdit() *cobra.Command {
	var file string
	var yes, dryRun bool
	c := &cobra.Command{
		Use:   "edit ID",
		Short: "Replay a dead letter with another payload",
		Long: `Replay a dead letter with another payload.

It opens the payload in your editor, shows the difference, asks, and replays the
event with the new payload. If the event dies again, the letter has both.`,
		Example: `  eventbus dlq edit 0196f3a4-7c00-7000-8000-000000000001
  jq .amount=4200 < payload.json | eventbus dlq edit ID --payload-file - --yes`,
	}
	c.Flags().StringVar(&file, "payload-file", "", "`FILE` with the new payload, - for the standard input, instead of the editor")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the difference, and change nothing")
	a.operatorFlags(c)
	return a.with(c, func(ctx context.Context, b backend, args []string) error {
		if err := a.checkOperator(b); err != nil {
			return err
		}
		id, err := letterID(args[0])
		if err != nil {
			return err
		}
		l, err := b.Letter(ctx, id, true)
		if err != nil {
			return err
		}
		if file == "" {
			if err := checkComplete(ctx, b, &l); err != nil {
				return err
			}
		}
		old := editable(l.Event.Payload)
		edited, err := a.edited(ctx, file, old)
		if err != nil {
			return err
		}
		edited, err = checkPayload(&l, edited)
		if err != nil {
			return err
		}
		diff := term.Diff(string(old), string(editable(payloadLike(&l, edited))))
		if diff == "" {
			return failed("'eventbus dlq replay "+id.String()+"' replays the letter as it is", "the payload is unchanged: nothing was done")
		}
		if !a.json {
			a.printf("%s", term.EscapeLines(diff))
		}
		if dryRun {
			return nil
		}
		if err := a.confirm(ctx, yes, "replay "+id.String()+" with this payload", 1); err != nil {
			return err
		}
		if err := b.ReplayEdited(ctx, id, edited, a.operator()); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]any{"letter_id": id, "action": "replay_edited"})
		}
		a.printf("replayed %s with the new payload\n", id)
		return nil
	})
}

// checkComplete refuses a payload that the redactor of a server has changed: what it has removed would be lost.
func checkComplete(ctx context.Context, b backend, l *eventbus.DeadLetter) error {
	listed, err := b.Letter(ctx, l.ID, false)
	if err != nil {
		return err
	}
	if h, hidden := listed.Event.Payload.(hiddenPayload); hidden && h != hide(l.Event.Payload) {
		return failed("edit it beside the store with --store FILE, or give the complete payload with --payload-file", "%s shows the payload redacted", b.Where())
	}
	return nil
}

// editable returns a payload as a text for an editor.
func editable(payload any) []byte {
	b := payloadBytes(payload)
	var indented bytes.Buffer
	if json.Indent(&indented, b, "", "  ") == nil {
		b = indented.Bytes()
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b[:len(b):len(b)], '\n')
	}
	return b
}

// payloadLike returns bytes as a payload of the same kind as the letter has.
func payloadLike(l *eventbus.DeadLetter, b []byte) any {
	if _, encoded := l.Event.Payload.(eventbus.EncodedPayload); encoded {
		return eventbus.EncodedPayload(b)
	}
	return json.RawMessage(b)
}

// checkPayload returns the bytes to replay. A payload that was JSON stays JSON.
func checkPayload(l *eventbus.DeadLetter, text []byte) ([]byte, error) {
	if _, encoded := l.Event.Payload.(eventbus.EncodedPayload); encoded {
		return text, nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, failed("correct it and run the command again", "the new payload is no JSON: %w", err)
	}
	return compact.Bytes(), nil
}

// maxPayload bounds what edited reads.
const maxPayload = 16 << 20

// edited returns the new payload: from a file, or from the editor.
func (a *app) edited(ctx context.Context, file string, old []byte) ([]byte, error) {
	switch {
	case file == "-":
		text, err := io.ReadAll(io.LimitReader(a.in, maxPayload+1))
		if err == nil && len(text) > maxPayload {
			err = usage("give a smaller one", "the new payload has more than %d bytes", maxPayload)
		}
		return text, err
	case file != "":
		return os.ReadFile(file)
	case !utf8.Valid(old):
		return nil, failed("write the payload with a program and give --payload-file", "the payload is no text")
	case !isTerminal(a.in):
		return nil, usage("give --payload-file FILE", "no editor: the input is not a terminal")
	}
	editor := env("VISUAL")
	if editor == "" {
		editor = env("EDITOR")
	}
	if editor == "" {
		return nil, usage("set EDITOR, or give --payload-file FILE", "no editor: VISUAL and EDITOR are not set")
	}
	dir, err := os.MkdirTemp("", "eventbus-edit-*") // only the user reads it
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the payload may stay in a directory of the user only
	path := filepath.Join(dir, "payload.json")
	if err := os.WriteFile(path, old, 0o600); err != nil {
		return nil, err
	}
	// The shell splits an editor with arguments, such as "code --wait".
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "sh", path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	if err := cmd.Run(); err != nil {
		return nil, failed("nothing was done; set EDITOR to another editor, or give --payload-file FILE", "editor %q: %w", editor, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the edited payload: %w", err)
	}
	return text, nil
}
