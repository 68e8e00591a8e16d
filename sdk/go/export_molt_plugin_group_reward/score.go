// Package export_molt_plugin_group_reward is what the generated exports call.
package export_molt_plugin_group_reward

import (
	"molt/internal/abi"
	types "molt/molt_plugin_types"
)

// Scorer is the plugin's own.
var Scorer func([]types.Sample) []types.Verdict

// ScoreGroup scores the rollouts of one prompt.
func ScoreGroup(samples []types.Sample) []types.Verdict {
	defer abi.Tell()
	if Scorer == nil {
		panic("no init function has called groupreward.Export")
	}
	return Scorer(samples)
}
