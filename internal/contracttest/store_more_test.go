package contracttest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surebus/eventbus"
	"github.com/surebus/eventbus/storetest"
)

func TestS3_AStoreBelongsToOneBus(t *testing.T) {
	model := storetest.NewModel()
	store, err := model.Open()
	require.NoError(t, err)
	bus, _ := newBus(t, eventbus.WithStore(store))
	_, err = eventbus.New(eventbus.WithStore(store))
	var refused *eventbus.OptionError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "WithStore", refused.Option)
	beside, _ := newBus(t, eventbus.WithStore(model.Beside()))
	shutdown(t, beside)
	shutdown(t, bus)
	for range 2 { // a failed New does not keep the store
		_, err = eventbus.New(eventbus.WithStore(store))
		require.ErrorIs(t, err, eventbus.ErrStoreClosed)
	}
}
