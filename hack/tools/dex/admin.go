package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dexidp/dex/storage"
	jose "gopkg.in/square/go-jose.v2"
)

// trusted is how long Dex's server may keep keys that it read.
const trusted = 10 * time.Millisecond

// freshKeys lets Dex's server keep keys for a moment only, so that a rotation shows at once. Its own rotation still
// happens: keys that are due read as due.
type freshKeys struct{ storage.Storage }

// GetKeys says that the keys are due a moment from now.
func (f freshKeys) GetKeys() (storage.Keys, error) {
	keys, err := f.Storage.GetKeys()
	if soon := time.Now().Add(trusted); err == nil && soon.Before(keys.NextRotation) {
		keys.NextRotation = soon
	}
	return keys, err
}

// admin answers /admin/ itself and hands everything else to Dex, unless an outage is on.
type admin struct {
	token   string
	storage storage.Storage
	people  *directory
	next    http.Handler
	outage  atomic.Bool
}

// ServeHTTP answers these, with the administration token, a POST each:
//
//	/admin/keys    {}                   a new signing key; the old one still verifies; gives {"kid"}
//	/admin/people  a person             adds or replaces the one with that id
//	/admin/revoke  {"id"}               ends all sessions of a person; gives {"ended"}
//	/admin/outage  {"on"}               answers 503 to everybody else
func (a *admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/admin/") {
		if a.outage.Load() {
			http.Error(w, "an outage was asked for", http.StatusServiceUnavailable)
			return
		}
		a.next.ServeHTTP(w, r)
		return
	}
	given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Method != http.MethodPost || subtle.ConstantTimeCompare([]byte(given), []byte(a.token)) != 1 {
		http.Error(w, "refused", http.StatusForbidden)
		return
	}
	answer, err := a.act(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *admin) act(r *http.Request) (any, error) {
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<16))
	decoder.DisallowUnknownFields()
	switch r.URL.Path {
	case "/admin/keys":
		kid, err := a.rotate()
		return map[string]string{"kid": kid}, err
	case "/admin/people":
		p := person{}
		if err := decoder.Decode(&p); err != nil {
			return nil, err
		}
		a.people.put(p)
		return map[string]string{}, nil
	case "/admin/revoke":
		asked := struct {
			ID string `json:"id"`
		}{}
		if err := decoder.Decode(&asked); err != nil {
			return nil, err
		}
		ended, err := a.revoke(asked.ID)
		return map[string]int{"ended": ended}, err
	case "/admin/outage":
		asked := struct {
			On bool `json:"on"`
		}{}
		if err := decoder.Decode(&asked); err != nil {
			return nil, err
		}
		a.outage.Store(asked.On)
		return map[string]string{}, nil
	}
	return nil, fmt.Errorf("there is no %s", r.URL.Path)
}

// rotate does what Dex does when keys are due, and returns once the server uses the new one.
func (a *admin) rotate() (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	kid := storage.NewID()
	of := func(key any) *jose.JSONWebKey {
		return &jose.JSONWebKey{Key: key, KeyID: kid, Algorithm: string(jose.RS256), Use: "sig"}
	}
	err = a.storage.UpdateKeys(func(old storage.Keys) (storage.Keys, error) {
		if old.SigningKeyPub != nil {
			former := storage.VerificationKey{PublicKey: old.SigningKeyPub, Expiry: time.Now().Add(24 * time.Hour)}
			old.VerificationKeys = append(old.VerificationKeys, former)
		}
		old.SigningKey, old.SigningKeyPub = of(key), of(key.Public())
		old.NextRotation = time.Now().Add(6 * time.Hour)
		return old, nil
	})
	time.Sleep(2 * trusted)
	return kid, err
}

// revoke ends sessions as Dex's own API does: the reference first, then the token.
func (a *admin) revoke(id string) (int, error) {
	tokens, err := a.storage.ListRefreshTokens()
	if err != nil {
		return 0, err
	}
	ended := 0
	for _, token := range tokens {
		if token.Claims.UserID != id {
			continue
		}
		forget := func(old storage.OfflineSessions) (storage.OfflineSessions, error) {
			delete(old.Refresh, token.ClientID)
			return old, nil
		}
		if err := a.storage.UpdateOfflineSessions(id, token.ConnectorID, forget); err != nil {
			return ended, err
		}
		if err := a.storage.DeleteRefresh(token.ID); err != nil {
			return ended, err
		}
		ended++
	}
	return ended, nil
}
