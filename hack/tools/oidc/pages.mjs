// The login page. Consent is given by whoever configured what an application may ask for, as an administrator does.
const escape = (text) => String(text).replace(/[&<>"']/g, (it) => `&#${it.charCodeAt(0)};`);

const page = (action, wrong) => `<!DOCTYPE html>
<title>Log in</title>
${wrong ? '<p>Login or password is wrong.</p>' : ''}
<form method="post" action="${escape(action)}">
<label>Login <input name="login" type="text" required></label>
<label>Password <input name="password" type="password" required></label>
<button type="submit">Log in</button>
</form>
`;

async function consent(provider, { grantId, session, params, prompt }) {
  const known = grantId && await provider.Grant.find(grantId);
  const grant = known || new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingOIDCClaims, missingResourceScopes = {} } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
  if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
  for (const [resource, scopes] of Object.entries(missingResourceScopes)) grant.addResourceScope(resource, scopes.join(' '));
  return { consent: { grantId: await grant.save() } };
}

// GET shows the form or gives the consent, POST takes the form. `form` are the fields sent.
export async function interaction(provider, directory, req, res, form) {
  const details = await provider.interactionDetails(req, res);
  if (details.prompt.name === 'consent') {
    const result = await consent(provider, details);
    await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: true });
    return;
  }
  const person = form && directory.login(form.get('login') ?? '', form.get('password') ?? '');
  if (person) {
    const result = { login: { accountId: person.id } };
    await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false });
    return;
  }
  res.writeHead(200, { 'content-type': 'text/html; charset=utf-8', 'cache-control': 'no-store' });
  res.end(page(req.originalUrl ?? req.url, Boolean(form)));
}
