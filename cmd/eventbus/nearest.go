package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/surebus/eventbus"
)

// nearest returns the one of all that is most like a name that was typed wrong, or "" if none is like it.
func nearest(name string, all []string) string {
	best, least := "", max(len([]rune(name))/3, 1)+1
	for _, other := range all {
		d := distance(strings.ToLower(name), strings.ToLower(other))
		if other != name && strings.HasPrefix(other, name) && name != "" {
			d = 1
		}
		if d < least {
			best, least = other, d
		}
	}
	return best
}

// longest bounds the texts that are compared.
const longest = 255

// distance is the number of characters that are inserted, deleted, replaced or swapped with the next one.
func distance(x, y string) int {
	from, to := []rune(x), []rune(y)
	from, to = from[:min(len(from), longest)], to[:min(len(to), longest)]
	before, last, row := make([]int, len(to)+1), make([]int, len(to)+1), make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range from {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range to {
			replaced := last[j]
			if from[i] != to[j] {
				replaced++
			}
			row[j+1] = min(replaced, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && from[i] == to[j-1] && from[i-1] == to[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(to)]
}

// didYouMean begins a remedy with the nearest name, if there is one.
func didYouMean(name string, all []string, next string) string {
	if near := nearest(name, all); near != "" {
		return "did you mean " + shellQuote(near) + "? " + next
	}
	return next
}

// unknownCommand is the error for a subcommand that does not exist.
func unknownCommand(c *cobra.Command, name string) error {
	var all []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			all = append(all, sub.Name())
		}
	}
	return usage(didYouMean(name, all, fmt.Sprintf("'%s --help' lists the commands", c.CommandPath())),
		"unknown command %q for %q", cutName(name), c.CommandPath())
}

// flagError is the error for a flag that does not exist, or has no or a bad value.
func flagError(c *cobra.Command, err error) error {
	next := fmt.Sprintf("see '%s --help'", c.CommandPath())
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		var all []string
		c.Flags().VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), all); near != "" {
			next = fmt.Sprintf("did you mean --%s? %s", near, next)
		}
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		if of, ok := invalid.GetFlag().Value.(interface{ choices() []string }); ok {
			next = didYouMean(invalid.GetValue(), of.choices(), next)
		}
	}
	return usage(next, "%w", err)
}

// choice is the value of a flag that has one of some values.
type choice[T ~string] struct {
	to  *T
	all []string
}

// choiceFlag adds a flag that has one of some values. help begins with the name of the value.
func choiceFlag[T ~string](c *cobra.Command, to *T, name, help string, all []string) {
	c.Flags().Var(&choice[T]{to, all}, name, help+": "+strings.Join(all, ", "))
	if err := c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag does not exist
	}
}

func (v *choice[T]) Type() string   { return "string" }
func (v *choice[T]) String() string { return string(*v.to) }

func (v *choice[T]) Set(text string) error {
	if slices.Contains(v.all, text) {
		*v.to = T(text)
		return nil
	}
	return fmt.Errorf("must be one of: %s", strings.Join(v.all, ", "))
}

func (v *choice[T]) choices() []string { return v.all }

// arguments returns the check of a command's arguments, by its line of use: "hold-until NAME TIME", "import [FILE]".
func arguments(use string) cobra.PositionalArgs {
	words := strings.Fields(use)[1:]
	return func(c *cobra.Command, args []string) error {
		next := fmt.Sprintf("use it as: %s; see '%s --help'", c.UseLine(), c.CommandPath())
		for i, word := range words {
			switch {
			case strings.HasSuffix(word, "...]"):
				return nil
			case i < len(args):
			case !strings.HasPrefix(word, "["):
				return usage(next, "%s is missing", word)
			}
		}
		if len(args) > len(words) {
			return usage(next, "the argument %q is one too many", cutName(args[len(words)]))
		}
		return nil
	}
}

// named adds the nearest name to the error of a subscription that does not exist.
func named(ctx context.Context, b backend, name string, err error) error {
	if err == nil || !errors.Is(err, eventbus.ErrNoSubscription) && describe(err, true).code != exitNotFound {
		return err
	}
	near := nearestSubscription(ctx, b, name)
	if near == "" {
		return err
	}
	f := describe(err, true)
	return &failure{f.code, f.err, "did you mean " + shellQuote(near) + "? " + f.next}
}

// nearestSubscription returns the name of a subscription that is like one that does not exist, or "".
func nearestSubscription(ctx context.Context, b backend, name string) string {
	all, err := b.Subscriptions(ctx)
	if err != nil {
		return ""
	}
	names := make([]string, len(all.List))
	for i := range all.List {
		names[i] = all.List[i].Subscription
	}
	if slices.Contains(names, name) {
		return ""
	}
	return nearest(name, names)
}

// noteNearest says which subscription is like one of which nothing was found.
func (a *app) noteNearest(ctx context.Context, b backend, name string, found int) {
	if name == "" || found > 0 {
		return
	}
	if near := nearestSubscription(ctx, b, name); near != "" {
		a.notef("no subscription has this name; did you mean --subscription %s?\n", shellQuote(near))
	}
}
