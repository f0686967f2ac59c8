package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"sync"

	"github.com/dexidp/dex/connector"
	"github.com/sirupsen/logrus"
)

// connectorType is ours beside Dex's own ones; they know either no groups or one person only.
const (
	connectorType = "people"
	connectorID   = "people"
)

// person is one who may log in. ID never changes; everything else may, as on a provider where logins can be renamed.
type person struct {
	ID       string   `json:"id"`
	Login    string   `json:"login"`
	Password string   `json:"password"`
	Email    string   `json:"email"`
	Groups   []string `json:"groups"`
	// Disabled people cannot log in, and their sessions cannot be refreshed.
	Disabled bool `json:"disabled"`
}

func (p person) identity() connector.Identity {
	return connector.Identity{UserID: p.ID, Username: p.Login, Email: p.Email, EmailVerified: true, Groups: p.Groups}
}

// directory holds the people, by id.
type directory struct {
	mutex  sync.RWMutex
	people map[string]person
}

func newDirectory(people []person) *directory {
	d := &directory{people: map[string]person{}}
	for _, p := range people {
		d.people[p.ID] = p
	}
	return d
}

func (d *directory) put(p person) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.people[p.ID] = p
}

func (d *directory) get(id string) (person, bool) {
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	p, ok := d.people[id]
	return p, ok
}

// Prompt is what the form calls the login.
func (d *directory) Prompt() string { return "Login" }

// Login is called with what the form was sent with.
func (d *directory) Login(_ context.Context, _ connector.Scopes, login, password string) (connector.Identity, bool, error) {
	d.mutex.RLock()
	defer d.mutex.RUnlock()
	for _, p := range d.people {
		same := subtle.ConstantTimeCompare([]byte(p.Password), []byte(password)) == 1
		if p.Login == login && same && !p.Disabled {
			return p.identity(), true, nil
		}
	}
	return connector.Identity{}, false, nil
}

// Refresh gives the person's present login, groups and address. Dex answers its error with 500, which tells a caller
// nothing; ending the sessions is what makes a refresh a plain refusal.
func (d *directory) Refresh(_ context.Context, _ connector.Scopes, was connector.Identity) (connector.Identity, error) {
	p, ok := d.get(was.UserID)
	if !ok || p.Disabled {
		return connector.Identity{}, errors.New("the person is gone or disabled")
	}
	return p.identity(), nil
}

// opener is how Dex asks for a connector.
type opener struct{ people *directory }

// Open gives the same directory each time.
func (o opener) Open(string, logrus.FieldLogger) (connector.Connector, error) { return o.people, nil }
