// Package estimator makes a plugin that turns rewards into advantages.
package estimator

import (
	export "molt/export_molt_plugin_estimator"
	estimator "molt/molt_plugin_estimator"
	_ "molt/wit_exports" // the component's exports
)

type (
	Batch     = estimator.Batch
	Credit    = estimator.Credit
	Estimates = estimator.Estimates
	Traits    = estimator.Traits
)

// Export makes estimate the plugin's. An error stops the run. Call it in an init function.
func Export(traits Traits, estimate func(Batch) (Estimates, error)) {
	export.Traits = traits
	export.Estimator = estimate
}

// PerRollout gives each action token of a rollout the rollout's number.
func PerRollout(values []float32) Credit {
	return estimator.MakeCreditPerRollout(values)
}

// PerToken gives each action token a number of its own.
func PerToken(values []float32) Credit {
	return estimator.MakeCreditPerToken(values)
}
