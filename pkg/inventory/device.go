package inventory

import (
	"math"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"tessera.dev/tessera/pkg/topology"
)

// Attributes of the driver's own domain, gpu.tessera.dev, which the API adds to names without one. Those of Kubernetes
// (pciBusID, pcieRoot, numaNode) have their names in k8s.io/dynamic-resource-allocation/deviceattribute.
const (
	AttributeType                  resourceapi.QualifiedName = "type"
	AttributeUUID                  resourceapi.QualifiedName = "uuid"
	AttributeIndex                 resourceapi.QualifiedName = "index"
	AttributeMinor                 resourceapi.QualifiedName = "minor"
	AttributeProductName           resourceapi.QualifiedName = "productName"
	AttributeBrand                 resourceapi.QualifiedName = "brand"
	AttributeArchitecture          resourceapi.QualifiedName = "architecture"
	AttributeCUDAComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	AttributeDriverVersion         resourceapi.QualifiedName = "driverVersion"
	AttributeCUDADriverVersion     resourceapi.QualifiedName = "cudaDriverVersion"
	AttributePCIeSwitch            resourceapi.QualifiedName = "pcieSwitch"
	AttributeCPUSocket             resourceapi.QualifiedName = "cpuSocket"
	AttributeECCEnabled            resourceapi.QualifiedName = "eccEnabled"
	AttributeVBIOS                 resourceapi.QualifiedName = "vbios"
)

// CapacityMemory is the size of a whole GPU's framebuffer in bytes.
const CapacityMemory resourceapi.QualifiedName = "memory"

func device(kind Kind, m topology.Machine, gpu topology.GPU) resourceapi.Device {
	d := resourceapi.Device{
		Name:       DeviceName(kind, gpu.Minor),
		Attributes: attributesOf(kind, m, gpu),
	}
	if kind == KindGPU && gpu.MemoryBytes > 0 && gpu.MemoryBytes <= math.MaxInt64 {
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapacityMemory: {Value: *resource.NewQuantity(int64(gpu.MemoryBytes), resource.BinarySI)},
		}
	}
	return d
}

// attributes collects what is known. A fact that is unknown, or has no form that the API takes, is left out: an empty
// string would match every other device that lacks the fact.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func attributesOf(kind Kind, m topology.Machine, gpu topology.GPU) attributes {
	a := attributes{}
	a.text(AttributeType, string(kind))
	a.id(AttributeUUID, gpu.UUID)
	a.number(AttributeIndex, &gpu.Index)
	a.number(AttributeMinor, &gpu.Minor)
	a.text(AttributeProductName, gpu.ProductName)
	a.text(AttributeBrand, gpu.Brand)
	a.text(AttributeArchitecture, gpu.Architecture)
	a.version(AttributeCUDAComputeCapability, gpu.CUDAComputeCapability)
	a.version(AttributeDriverVersion, m.DriverVersion)
	a.version(AttributeCUDADriverVersion, m.CUDADriverVersion)
	a.id(deviceattribute.StandardDeviceAttributePCIBusID, gpu.PCI.BusID)
	a.id(deviceattribute.StandardDeviceAttributePCIeRoot, gpu.PCI.Root)
	a.number(deviceattribute.StandardDeviceAttributeNUMANode, gpu.PCI.NUMANode)
	a.id(AttributePCIeSwitch, gpu.PCI.Switch)
	a.number(AttributeCPUSocket, gpu.PCI.CPUSocket)
	if gpu.ECCEnabled != nil {
		enabled := *gpu.ECCEnabled
		a[AttributeECCEnabled] = resourceapi.DeviceAttribute{BoolValue: &enabled}
	}
	a.id(AttributeVBIOS, gpu.VBIOS)
	return a
}

// text adds words for people. What is longer than the API takes is cut at the end of a character.
func (a attributes) text(name resourceapi.QualifiedName, value string) {
	value = strings.ToValidUTF8(value, "")
	if len(value) > resourceapi.DeviceAttributeMaxValueLength {
		end := resourceapi.DeviceAttributeMaxValueLength
		for !utf8.RuneStart(value[end]) {
			end--
		}
		value = value[:end]
	}
	a.id(name, value)
}

// id adds what tells things apart. What is longer than the API takes is left out: a part of it could be equal to a part of another.
func (a attributes) id(name resourceapi.QualifiedName, value string) {
	if value == "" || len(value) > resourceapi.DeviceAttributeMaxValueLength || !utf8.ValidString(value) {
		return
	}
	a[name] = resourceapi.DeviceAttribute{StringValue: &value}
}

// number adds a number that cannot be negative.
func (a attributes) number(name resourceapi.QualifiedName, value *int) {
	if value == nil || *value < 0 {
		return
	}
	number := int64(*value)
	a[name] = resourceapi.DeviceAttribute{IntValue: &number}
}

func (a attributes) version(name resourceapi.QualifiedName, value string) {
	if version, ok := semanticVersion(value); ok {
		a[name] = resourceapi.DeviceAttribute{VersionValue: &version}
	}
}
