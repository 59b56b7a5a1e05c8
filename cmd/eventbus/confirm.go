package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// typedAbove is the number of letters above which an operator types the number to confirm.
const typedAbove = 100

// confirm asks the operator to confirm what happens to n letters. what is a phrase such as "replay 3
// letters".
func (a *app) confirm(ctx context.Context, yes bool, what string, n int) error {
	if yes {
		return nil
	}
	if !isTerminal(a.in) {
		return usage("check with --dry-run, then add --yes", "no confirmation: the input is not a terminal")
	}
	if n > typedAbove {
		return a.ask(ctx, fmt.Sprintf("%s? Type the number %d to confirm: ", what, n), fmt.Sprint(n))
	}
	return a.ask(ctx, fmt.Sprintf("%s? [y/N] ", what), "y", "yes")
}

// confirmName asks the operator to type a name to confirm.
func (a *app) confirmName(ctx context.Context, yes bool, what, name string) error {
	if yes {
		return nil
	}
	if !isTerminal(a.in) {
		return usage("check with --dry-run, then add --yes", "no confirmation: the input is not a terminal")
	}
	return a.ask(ctx, what+"? Type the name to confirm: ", strings.ToLower(strings.TrimSpace(name)))
}

// ask asks a question until one of some answers, in lower case, or anything else.
func (a *app) ask(ctx context.Context, question string, want ...string) error {
	a.notef("%s", question)
	answers := make(chan string, 1)
	go func() { // it ends with the process if there is no answer
		answer, _ := bufio.NewReader(io.LimitReader(a.in, 1<<10)).ReadString('\n') // without an answer, it is empty
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	var answer string
	select {
	case answer = <-answers:
	case <-ctx.Done():
		a.notef("\n")
		return failed("run the command again to confirm", "interrupted: nothing was done")
	}
	if !slices.Contains(want, answer) {
		return usage("run the command again to confirm", "not confirmed: nothing was done")
	}
	return nil
}
