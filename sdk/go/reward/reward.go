// Package reward makes a plugin that scores one finished rollout.
package reward

import (
	export "molt/export_molt_plugin_reward"
	types "molt/molt_plugin_types"
	_ "molt/wit_exports" // the component's exports
)

type (
	Sample  = types.Sample
	Task    = types.Task
	Message = types.Message
	Field   = types.Field
	Metric  = types.Metric
	Grade   = types.Grade
	Verdict = types.Verdict
)

// Who said a message.
const (
	System    = types.RoleSystem
	User      = types.RoleUser
	Assistant = types.RoleAssistant
	Tool      = types.RoleTool
)

// Export makes score the plugin's. Call it in an init function.
func Export(score func(Sample) Verdict) {
	export.Scorer = score
}

// Scored is a score, which must be a finite number.
func Scored(grade Grade) Verdict {
	return types.MakeVerdictScored(grade)
}

// Invalid says why the model's output cannot be scored: the run's lowest reward, still trained.
func Invalid(why string) Verdict {
	return types.MakeVerdictInvalid(why)
}

// Infra says why the grader failed: the rollout is dropped and counted.
func Infra(why string) Verdict {
	return types.MakeVerdictInfra(why)
}
