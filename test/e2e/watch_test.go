//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// patience is how long a single wait may take. A busy machine with two cores stays far below it.
const patience = 2 * time.Minute

// hopeless marks an error after which waiting longer has no sense.
type hopeless struct{ error }

// source is what to watch.
type source struct {
	getter    cache.Getter
	resource  string
	namespace string
	// field and label are selectors; empty selects all.
	field, label string
}

// named watches a single object.
func (s source) named(name string) source {
	s.field = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return s
}

// until watches until check accepts the objects, and returns its last complaint when that takes longer than patience.
func until[T any, P interface {
	*T
	runtime.Object
}](ctx context.Context, from source, what string, check func([]P) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list := cache.NewFilteredListWatchFromClient(from.getter, from.resource, from.namespace, func(options *metav1.ListOptions) {
		options.FieldSelector = from.field
		options.LabelSelector = from.label
	})
	var (
		store     cache.Store
		complaint error
	)
	look := func() (bool, error) {
		var objects []P
		for _, object := range store.List() {
			typed, ok := object.(P)
			if !ok {
				return false, fmt.Errorf("watched %s and saw a %T", from.resource, object)
			}
			objects = append(objects, typed)
		}
		complaint = check(objects)
		var never hopeless
		if errors.As(complaint, &never) {
			return false, complaint
		}
		return complaint == nil, nil
	}
	_, err := watchtools.UntilWithSync(ctx, list, P(new(T)),
		func(s cache.Store) (bool, error) { store = s; return look() },
		func(watch.Event) (bool, error) { return look() })
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, errors.Join(err, complaint))
	}
	return nil
}

// none is a check that wants no object to be left.
func none[P metav1.Object](objects []P) error {
	if len(objects) > 0 {
		return fmt.Errorf("%d are left, for example %s", len(objects), objects[0].GetName())
	}
	return nil
}
