// Package abi moves memory between the host and the generated code.
package abi

import (
	"runtime"
	"strings"
	"unsafe"
)

// What the host has allocated and the plugin has not read yet. The collector does not move memory, so a reference
// is enough to keep it where it is.
var arguments []unsafe.Pointer

// block gives zeroed memory without pointers, aligned to 8 bytes as the contract needs at most.
func block(size uintptr) unsafe.Pointer {
	if size == 0 {
		return nil
	}
	words := make([]uint64, (size+7)/8)
	return unsafe.Pointer(unsafe.SliceData(words))
}

// Allocate gives memory that stays until pinner is unpinned.
func Allocate(pinner *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	memory := block(size)
	if memory != nil {
		pinner.Pin(memory)
	}
	return memory
}

// Unpin ends what cabi_realloc promised: the generated code calls it when Go values refer to the memory.
func Unpin() {
	clear(arguments)
	arguments = arguments[:0]
}

// The adapter of WASI asks for its own memory when the runtime first calls it, which is before the runtime can
// allocate. It asks for two pages and keeps them.
var (
	early     [3 << 16]byte
	earlyUsed uint32
	started   bool
)

func init() {
	started = true
}

// The host asks for memory for what it passes to the plugin.
//
//go:wasmexport cabi_realloc
func realloc(old unsafe.Pointer, oldSize, align, size uint32) unsafe.Pointer {
	if !started {
		start := (earlyUsed + 7) &^ 7
		earlyUsed = start + size
		return unsafe.Pointer(&early[start : start+size : start+size][0])
	}
	if size == 0 {
		return unsafe.Pointer(uintptr(align))
	}
	memory := block(uintptr(size))
	arguments = append(arguments, memory)
	if oldSize > 0 {
		copy(unsafe.Slice((*byte)(memory), size), unsafe.Slice((*byte)(old), oldSize))
	}
	return memory
}

// Go prints a panic first and then the stack of every goroutine, of which a log of bounded length keeps the end.
// A panic is told in few lines instead, see [Tell].
func init() {
	traceback = 0
}

// What GOTRACEBACK would set; no plugin has an environment.
//
//go:linkname traceback runtime.traceback_cache
var traceback uint32

// Tell prints where a panic came from and lets it go on. Every export defers it.
func Tell() {
	why := recover()
	if why == nil {
		return
	}
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") && !strings.HasPrefix(frame.Function, "molt") {
			// A project is the module `source`.
			file := strings.TrimPrefix(frame.File, "source/")
			print("at ", frame.Function, " (", file, ":", frame.Line, ")\n")
		}
	}
	panic(why)
}

// Handle owns a resource of the host, or has given it away.
type Handle struct {
	value int32
}

// MakeHandle owns the resource.
func MakeHandle(value int32) *Handle {
	return &Handle{value}
}

// Use gives the resource to a call.
func (handle *Handle) Use() int32 {
	if handle.value == 0 {
		panic("the resource is no longer ours")
	}
	return handle.value
}

// Take gives the resource away.
func (handle *Handle) Take() int32 {
	value := handle.Use()
	handle.value = 0
	return value
}

// TakeOrNil gives the resource away, or 0 if that has happened.
func (handle *Handle) TakeOrNil() int32 {
	value := handle.value
	handle.value = 0
	return value
}

// Set owns a resource again.
func (handle *Handle) Set(value int32) {
	if handle.value != 0 {
		panic("the handle owns another resource")
	}
	handle.value = value
}
