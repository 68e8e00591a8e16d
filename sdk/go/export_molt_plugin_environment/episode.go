// Package export_molt_plugin_environment is what the generated exports call.
package export_molt_plugin_environment

import (
	"runtime"

	"molt/internal/abi"
	environment "molt/molt_plugin_environment"
	types "molt/molt_plugin_types"
	"molt/wit"
)

// Own is an episode of the plugin.
type Own interface {
	Reset() ([]types.Message, error)
	Step(action environment.Action) (environment.Transition, error)
}

// Open is the plugin's own.
var Open func(types.Task) Own

// Episode is what the host holds by its address.
type Episode struct {
	pinner runtime.Pinner
	handle int32
	own    Own
}

// The host's reference is not one that the collector sees.
var open = make(map[*Episode]struct{})

// MakeEpisode begins an episode.
func MakeEpisode(task types.Task) *Episode {
	defer abi.Tell()
	if Open == nil {
		panic("no init function has called environment.Export")
	}
	episode := &Episode{own: Open(task)}
	open[episode] = struct{}{}
	return episode
}

// OnDrop ends it.
func (episode *Episode) OnDrop() {
	delete(open, episode)
}

// Reset gives the first messages.
func (episode *Episode) Reset() wit.Result[[]types.Message, types.Failure] {
	defer abi.Tell()
	return result(episode.own.Reset())
}

// Step answers a turn of the model.
func (episode *Episode) Step(action environment.Action) wit.Result[environment.Transition, types.Failure] {
	defer abi.Tell()
	return result(episode.own.Step(action))
}

func result[T any](value T, err error) wit.Result[T, types.Failure] {
	if err != nil {
		return wit.Err[T](types.Failure{Message: err.Error()})
	}
	return wit.Ok[T, types.Failure](value)
}
