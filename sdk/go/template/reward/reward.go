// Closeness: half the share of the label's beginning that the answer has, and 1 for the label itself.
package main

import (
	"strings"

	"molt/reward"
	"molt/wit"
)

func init() {
	reward.Export(score)
}

func main() {} // the linker asks for it

const space = " \t\n\r\v\f"

func score(sample reward.Sample) reward.Verdict {
	label, ok := sample.Task.Label.Get()
	if !ok {
		return reward.Infra("the row has no label")
	}
	answer, expected := []rune(strings.Trim(sample.Completion, space)), []rune(strings.Trim(label, space))
	if len(answer) == 0 {
		return reward.Invalid("the answer is empty")
	}
	common := 0
	for common < min(len(answer), len(expected)) && answer[common] == expected[common] {
		common++
	}
	longer := max(len(answer), len(expected))
	solved, closeness := common == longer, 0.5*float64(common)/float64(longer)
	if solved {
		closeness = 1
	}
	return reward.Scored(reward.Grade{
		Reward:  closeness,
		Solved:  wit.Some(solved),
		Metrics: []reward.Metric{{Name: "length", Value: float64(len(answer))}},
	})
}
