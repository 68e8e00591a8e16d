// Package estimator makes a plugin that turns rewards into advantages.
package estimator

import (
	export "molt/export_molt_plugin_estimator"
	estimator "molt/molt_plugin_estimator"
	types "molt/molt_plugin_types"
	_ "molt/wit_exports" // the component's exports
)

type (
	Batch     = estimator.Batch
	Credit    = estimator.Credit
	Estimates = estimator.Estimates
	Traits    = estimator.Traits
	Parameter = types.Parameter
)

// Float is a parameter that is a number from min to max; an infinite bound is none.
func Float(name, doc string, value, min, max float64) Parameter {
	bounds := types.FloatRange{Default: value, Min: min, Max: max}
	return Parameter{Name: name, Doc: doc, Kind: types.MakeParameterKindFloat(bounds)}
}

// Integer is a parameter that is a whole number from min to max.
func Integer(name, doc string, value, min, max int32) Parameter {
	bounds := types.IntegerRange{Default: value, Min: min, Max: max}
	return Parameter{Name: name, Doc: doc, Kind: types.MakeParameterKindInteger(bounds)}
}

// Boolean is a parameter that is a switch.
func Boolean(name, doc string, value bool) Parameter {
	return Parameter{Name: name, Doc: doc, Kind: types.MakeParameterKindBoolean(value)}
}

// Choice is a parameter that is one of the words; the first is the default.
func Choice(name, doc string, words ...string) Parameter {
	return Parameter{Name: name, Doc: doc, Kind: types.MakeParameterKindChoice(words)}
}

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
