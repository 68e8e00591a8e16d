// Package export_molt_plugin_estimator is what the generated exports call.
package export_molt_plugin_estimator

import (
	"molt/internal/abi"
	estimator "molt/molt_plugin_estimator"
	"molt/wit"
)

// Traits and Estimator are the plugin's own.
var (
	Traits    estimator.Traits
	Estimator func(estimator.Batch) (estimator.Estimates, error)
)

// Describe says what the estimator needs.
func Describe() estimator.Traits {
	return Traits
}

// Estimate estimates the advantages of a batch.
func Estimate(batch estimator.Batch) wit.Result[estimator.Estimates, string] {
	defer abi.Tell()
	if Estimator == nil {
		panic("no init function has called estimator.Export")
	}
	estimates, err := Estimator(batch)
	if err != nil {
		return wit.Err[estimator.Estimates](err.Error())
	}
	return wit.Ok[estimator.Estimates, string](estimates)
}
