// Package wit has the generic types of the contract: options and results.
package wit

// Tags of an [Option].
const (
	OptionNone uint8 = iota
	OptionSome
)

// Tags of a [Result].
const (
	ResultOk uint8 = iota
	ResultErr
)

// Unit is the value of a result that has none.
type Unit struct{}

// Option is a value or nothing. The zero Option is nothing.
type Option[T any] struct {
	tag   uint8
	value T
}

// Some makes an option with a value.
func Some[T any](value T) Option[T] {
	return Option[T]{OptionSome, value}
}

// None makes an option without one.
func None[T any]() Option[T] {
	return Option[T]{}
}

// Tag is [OptionNone] or [OptionSome].
func (option Option[T]) Tag() uint8 {
	return option.tag
}

// Get gives the value, and whether there is one.
func (option Option[T]) Get() (T, bool) {
	return option.value, option.tag == OptionSome
}

// Some gives the value. It panics when there is none.
func (option Option[T]) Some() T {
	if option.tag != OptionSome {
		panic("the option has no value")
	}
	return option.value
}

// Result is a value or an error.
type Result[T, E any] struct {
	tag   uint8
	value T
	error E
}

// Ok makes a result with a value.
func Ok[T, E any](value T) Result[T, E] {
	return Result[T, E]{tag: ResultOk, value: value}
}

// Err makes a result with an error.
func Err[T, E any](err E) Result[T, E] {
	return Result[T, E]{tag: ResultErr, error: err}
}

// Tag is [ResultOk] or [ResultErr].
func (result Result[T, E]) Tag() uint8 {
	return result.tag
}

// Ok gives the value. It panics when the result is an error.
func (result Result[T, E]) Ok() T {
	if result.tag != ResultOk {
		panic("the result is an error")
	}
	return result.value
}

// Err gives the error. It panics when the result is a value.
func (result Result[T, E]) Err() E {
	if result.tag != ResultErr {
		panic("the result is a value")
	}
	return result.error
}
