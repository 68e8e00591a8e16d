// Package environment makes a plugin that answers the model's turns.
package environment

import (
	export "molt/export_molt_plugin_environment"
	environment "molt/molt_plugin_environment"
	types "molt/molt_plugin_types"
	_ "molt/wit_exports" // the component's exports
)

type (
	Task       = types.Task
	Message    = types.Message
	Field      = types.Field
	Metric     = types.Metric
	ToolCall   = types.ToolCall
	Action     = environment.Action
	Transition = environment.Transition
)

// Who said a message.
const (
	System    = types.RoleSystem
	User      = types.RoleUser
	Assistant = types.RoleAssistant
	Tool      = types.RoleTool
)

// Episode is one conversation. An error drops the rollout, which is counted and not trained on.
type Episode interface {
	// Reset gives the messages of the first prompt. It is called once, before any Step.
	Reset() ([]Message, error)
	// Step answers one turn of the model.
	Step(action Action) (Transition, error)
}

// Export makes open begin the plugin's episodes. Call it in an init function.
func Export(open func(Task) Episode) {
	export.Open = func(task Task) export.Own { return open(task) }
}
