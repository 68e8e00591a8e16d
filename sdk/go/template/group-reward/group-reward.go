// A right answer is worth 1, divided among the rollouts of the prompt that found it in the same words.
package main

import (
	"strings"

	"molt/groupreward"
	"molt/wit"
)

func init() {
	groupreward.Export(scoreGroup)
}

func main() {} // the linker asks for it

func scoreGroup(samples []groupreward.Sample) []groupreward.Verdict {
	same := map[string]float64{}
	for _, sample := range samples {
		same[sample.Completion]++
	}
	var verdicts []groupreward.Verdict
	for _, sample := range samples {
		verdicts = append(verdicts, score(sample, same[sample.Completion]))
	}
	return verdicts
}

func score(sample groupreward.Sample, same float64) groupreward.Verdict {
	label, ok := sample.Task.Label.Get()
	if !ok {
		return groupreward.Infra("the row has no label") // the grader's fault: dropped and counted
	}
	reward, solved := 0.0, strings.Contains(sample.Completion, label)
	if solved {
		reward = 1 / same
	}
	return groupreward.Scored(groupreward.Grade{
		Reward:  reward,
		Solved:  wit.Some(solved),
		Metrics: []groupreward.Metric{{Name: "same", Value: same}},
	})
}
