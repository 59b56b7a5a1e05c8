package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
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
	want, question := "y", fmt.Sprintf("%s? [y/N] ", what)
	if n > typedAbove {
		want = fmt.Sprint(n)
		question = fmt.Sprintf("%s? Type the number %s to confirm: ", what, want)
	}
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
	if answer != want && (want != "y" || answer != "yes") {
		return usage("run the command again to confirm", "not confirmed: nothing was done")
	}
	return nil
}
