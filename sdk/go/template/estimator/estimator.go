// Leave one out: a rollout's advantage is its reward less the mean reward of the others of its group.
package main

import "molt/estimator"

func init() {
	estimator.Export(estimator.Traits{NeedsGroup: true}, estimate)
}

func main() {} // the linker asks for it

func estimate(batch estimator.Batch) (estimator.Estimates, error) {
	sums, sizes := map[uint32]float64{}, map[uint32]int{}
	for i, reward := range batch.Rewards {
		sums[batch.Groups[i]] += float64(reward)
		sizes[batch.Groups[i]]++
	}
	advantages := make([]float32, len(batch.Rewards))
	for i, reward := range batch.Rewards {
		group := batch.Groups[i]
		if others := sizes[group] - 1; others > 0 {
			own := float64(reward)
			advantages[i] = float32(own - (sums[group]-own)/float64(others))
		}
	}
	return estimator.Estimates{
		Advantages: estimator.PerRollout(advantages),
		Returns:    estimator.PerRollout(batch.Rewards),
	}, nil
}
