package inventory_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"tessera.dev/tessera/pkg/inventory"
)

const driverName = "gpu.tessera.dev"

// semver is the expression that semver.org gives for Semantic Versioning 2.0.0, without the pre-release and build parts, which we never make.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

var cIdentifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkLimits holds a node's pool against the validation of resource.k8s.io/v1 in Kubernetes 1.37, and against what would hold
// with a taint on every device. It returns what the API server would refuse.
func checkLimits(pool []inventory.Slice) []string {
	var problems []string
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if len(pool) == 0 {
		report("a pool needs a slice")
	}
	names := map[string]bool{}
	for i, slice := range pool {
		if len(slice.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			report("slice %d has %d devices, more than %d", i, len(slice.Devices), resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures)
		}
		if len(slice.SharedCounters) > 0 && len(slice.Devices) > 0 {
			report("slice %d has counters and devices", i)
		}
		if len(slice.SharedCounters) > 8 {
			report("slice %d has %d counter sets, more than 8", i, len(slice.SharedCounters))
		}
		for _, device := range slice.Devices {
			if names[device.Name] {
				report("two devices have the name %s", device.Name)
			}
			names[device.Name] = true
			for _, problem := range checkDevice(device) {
				report("device %s: %s", device.Name, problem)
			}
		}
	}
	return problems
}

func checkDevice(device resourceapi.Device) []string {
	problems := validation.IsDNS1123Label(device.Name)
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if n := len(device.Attributes) + len(device.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		report("%d attributes and capacities, more than %d", n, resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	}
	if len(device.Attributes) > resourceapi.ResourceSliceMaxAttributeValuesPerDevice {
		report("%d attribute values, more than %d", len(device.Attributes), resourceapi.ResourceSliceMaxAttributeValuesPerDevice)
	}
	if len(device.Taints) > resourceapi.DeviceTaintsMaxLength {
		report("%d taints", len(device.Taints))
	}
	for name, value := range device.Attributes {
		problems = append(problems, checkQualifiedName(name)...)
		for _, problem := range checkValue(value) {
			report("%s: %s", name, problem)
		}
	}
	for name, capacity := range device.Capacity {
		problems = append(problems, checkQualifiedName(name)...)
		if capacity.Value.Sign() < 0 {
			report("capacity %s is negative", name)
		}
	}
	return problems
}

func checkQualifiedName(name resourceapi.QualifiedName) []string {
	domain, id, qualified := strings.Cut(string(name), "/")
	if !qualified {
		domain, id = driverName, domain
	}
	problems := validation.IsDNS1123Subdomain(domain)
	if len(domain) > resourceapi.DeviceMaxDomainLength || len(id) > resourceapi.DeviceMaxIDLength || !cIdentifier.MatchString(id) {
		problems = append(problems, fmt.Sprintf("%q is not a qualified name", name))
	}
	return problems
}

func checkValue(value resourceapi.DeviceAttribute) []string {
	var problems []string
	set := 0
	if value.IntValue != nil {
		set++
		if *value.IntValue < 0 {
			problems = append(problems, fmt.Sprintf("%d: an unknown number must be left out", *value.IntValue))
		}
	}
	if value.BoolValue != nil {
		set++
	}
	if text := value.StringValue; text != nil {
		set++
		if *text == "" || len(*text) > resourceapi.DeviceAttributeMaxValueLength || !utf8.ValidString(*text) {
			problems = append(problems, fmt.Sprintf("%q is empty, or no text, or longer than %d bytes", *text, resourceapi.DeviceAttributeMaxValueLength))
		}
	}
	if version := value.VersionValue; version != nil {
		set++
		if len(*version) > resourceapi.DeviceAttributeMaxValueLength || !semver.MatchString(*version) {
			problems = append(problems, fmt.Sprintf("%q is not a semantic version", *version))
		}
	}
	if set != 1 {
		problems = append(problems, fmt.Sprintf("%d values, want one", set))
	}
	return problems
}

func wantWithinLimits(t *testing.T, pool []inventory.Slice) {
	t.Helper()
	for _, problem := range checkLimits(pool) {
		t.Error(problem)
	}
}
