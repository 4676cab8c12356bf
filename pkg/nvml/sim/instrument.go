package sim

import (
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var returnType = reflect.TypeFor[nvml.Return]()

// instrument puts a gate before every function of a generated mock, and a polite refusal where the mock has none.
//
// mock is a pointer to one of go-nvml's mocks, whose fields are functions named <Method>Func. Before each call the gate is
// asked; what it returns other than SUCCESS becomes the call's result. A function that nobody set answers ERROR_NOT_SUPPORTED,
// or is delegated to the method of its first argument where delegates says so: NVML's Go binding has every device function
// twice, as Device.GetUUID() and as Interface.DeviceGetUUID(Device).
func instrument(mock any, gate func(call string) nvml.Return, delegates map[string]reflect.Type) {
	value := reflect.ValueOf(mock).Elem()
	for i := range value.NumField() {
		field := value.Type().Field(i)
		call, ok := strings.CutSuffix(field.Name, "Func")
		if !ok || !field.IsExported() || field.Type.Kind() != reflect.Func {
			continue
		}
		implementation := reflect.ValueOf(value.Field(i).Interface())
		if implementation.IsNil() {
			if to := delegate(call, field.Type, delegates); to != "" {
				value.Field(i).Set(callMethod(field.Type, to))
				continue // the delegate has a gate of its own
			}
		}
		value.Field(i).Set(gated(field.Type, call, implementation, gate))
	}
}

// gated wraps one function of a mock; implementation may be a nil function.
func gated(signature reflect.Type, call string, implementation reflect.Value, gate func(string) nvml.Return) reflect.Value {
	return reflect.MakeFunc(signature, func(args []reflect.Value) []reflect.Value {
		if ret := gate(call); ret != nvml.SUCCESS && hasReturn(signature) {
			return refusal(signature, ret)
		}
		if implementation.IsNil() {
			return refusal(signature, nvml.ERROR_NOT_SUPPORTED)
		}
		if signature.IsVariadic() {
			return implementation.CallSlice(args)
		}
		return implementation.Call(args)
	})
}

// delegate names the method of the first argument that does the same as the library's function, or "".
func delegate(call string, signature reflect.Type, delegates map[string]reflect.Type) string {
	for prefix, receiver := range delegates {
		method, ok := strings.CutPrefix(call, prefix)
		if !ok || signature.NumIn() == 0 || signature.In(0) != receiver {
			continue
		}
		if m, ok := receiver.MethodByName(method); ok && sameShape(signature, m.Type) {
			return method
		}
	}
	return ""
}

// sameShape reports whether method has function's parameters without the first, and its results.
func sameShape(function, method reflect.Type) bool {
	if function.NumIn() != method.NumIn()+1 || function.NumOut() != method.NumOut() {
		return false
	}
	for i := range method.NumIn() {
		if function.In(i+1) != method.In(i) {
			return false
		}
	}
	for i := range method.NumOut() {
		if function.Out(i) != method.Out(i) {
			return false
		}
	}
	return true
}

func callMethod(signature reflect.Type, method string) reflect.Value {
	return reflect.MakeFunc(signature, func(args []reflect.Value) []reflect.Value {
		if args[0].IsNil() {
			return refusal(signature, nvml.ERROR_INVALID_ARGUMENT)
		}
		return args[0].MethodByName(method).Call(args[1:])
	})
}

func hasReturn(signature reflect.Type) bool {
	outs := signature.NumOut()
	return outs > 0 && signature.Out(outs-1) == returnType
}

// refusal gives zero values and, where the function has one, ret as the last result.
func refusal(signature reflect.Type, ret nvml.Return) []reflect.Value {
	results := make([]reflect.Value, signature.NumOut())
	for i := range results {
		results[i] = reflect.Zero(signature.Out(i))
	}
	if hasReturn(signature) {
		results[len(results)-1] = reflect.ValueOf(ret)
	}
	return results
}

// copyFuncs sets every function of one mock from another of the same type. A fresh mock per handle keeps the
// record of calls, which the generated mocks never drop, from growing for as long as the process lives.
func copyFuncs(to, from any) {
	target, source := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range target.NumField() {
		if target.Type().Field(i).IsExported() {
			target.Field(i).Set(source.Field(i))
		}
	}
}

// setFuncs names the functions of a mock that are set.
func setFuncs(mock any) []string {
	var names []string
	value := reflect.ValueOf(mock).Elem()
	for i := range value.NumField() {
		field := value.Type().Field(i)
		name, ok := strings.CutSuffix(field.Name, "Func")
		if ok && field.IsExported() && field.Type.Kind() == reflect.Func && !value.Field(i).IsNil() {
			names = append(names, name)
		}
	}
	return names
}
