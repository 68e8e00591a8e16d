// Package export_molt_plugin_reward is what the generated exports call.
package export_molt_plugin_reward

import (
	"molt/internal/abi"
	types "molt/molt_plugin_types"
)

// Scorer is the plugin's own.
var Scorer func(types.Sample) types.Verdict

// Score scores one rollout.
func Score(sample types.Sample) types.Verdict {
	defer abi.Tell()
	if Scorer == nil {
		panic("no init function has called reward.Export")
	}
	return Scorer(sample)
}
