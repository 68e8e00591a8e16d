// Guess: the model looks for a whole number from 1 to 100 and is told whether it is higher or lower.
package main

import (
	"strconv"
	"strings"

	"molt/environment"
	"molt/wit"
)

const mostGuesses = 7

func init() {
	environment.Export(func(task environment.Task) environment.Episode {
		return &episode{task: task, secret: 1 + task.Seed%100}
	})
}

func main() {} // the linker asks for it

type episode struct {
	task    environment.Task
	secret  uint64
	guesses int
}

func (e *episode) Reset() ([]environment.Message, error) {
	question := user("I think of a whole number from 1 to 100. What is it?")
	return append(e.task.Messages, question), nil
}

func (e *episode) Step(action environment.Action) (environment.Transition, error) {
	e.guesses++
	var next environment.Transition
	guess, number := firstNumber(action.Text)
	switch {
	case number && guess == e.secret:
		next.Done, next.Reward, next.Solved = true, wit.Some(1.0), wit.Some(true)
	case e.guesses >= mostGuesses:
		next.Done, next.Reward, next.Solved = true, wit.Some(0.0), wit.Some(false)
	case !number:
		next.Messages = []environment.Message{user("Say a whole number.")}
	case e.secret > guess:
		next.Messages, next.Reward = []environment.Message{user("Higher.")}, wit.Some(-0.05)
	default:
		next.Messages, next.Reward = []environment.Message{user("Lower.")}, wit.Some(-0.05)
	}
	next.Metrics = []environment.Metric{{Name: "guesses", Value: float64(e.guesses)}}
	return next, nil
}

// firstNumber is the first run of digits, if there is one and it has at most 9.
func firstNumber(text string) (uint64, bool) {
	digit := func(r rune) bool { return '0' <= r && r <= '9' }
	start := strings.IndexFunc(text, digit)
	if start < 0 {
		return 0, false
	}
	digits := text[start:]
	if end := strings.IndexFunc(digits, func(r rune) bool { return !digit(r) }); end >= 0 {
		digits = digits[:end]
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil && len(digits) <= 9
}

func user(content string) environment.Message {
	return environment.Message{Role: environment.User, Content: content}
}
