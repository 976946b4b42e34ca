//! The event handlers of a vendor's task.

use super::{
    DropGuard, Instant, Ordering, PluginConnection, PluginDeviceList, PluginTaskEvent,
    ProxyVendorTask, ResourceInstances, ResourceName, Stat, UnixAddress, follow,
};
use crate::plugin_proxy::PluginProblem;

impl ProxyVendorTask {
    pub(super) fn on_event(&mut self, event: PluginTaskEvent) {
        match event {
            PluginTaskEvent::Came {
                resource,
                connection,
                reply,
            } => {
                match self.take(resource, connection) {
                    Ok(()) => {
                        self.saving.before(reply);
                        self.saving.start(&self.known);
                    }
                    // If the plugin gave up waiting, the answer is not needed.
                    Err(why) => drop(reply.send(Err(why))),
                }
            }
            PluginTaskEvent::Returned {
                resource,
                connection,
            } => self.returned(resource, connection),
            PluginTaskEvent::Lost {
                resource,
                endpoint,
                was,
                why,
            } => self.lost(&resource, &endpoint, was, &why),
            PluginTaskEvent::Closed { why } => {
                let vendor = &self.vendor.name;
                tracing::warn!(vendor = %vendor, "the registration server of {vendor} failed: {why}");
                self.bind_later();
            }
            PluginTaskEvent::Refused { name, why } => self.refused(&name, &why),
            PluginTaskEvent::Heard {
                resource,
                number,
                list,
            } => self.heard(&resource, number, list),
            PluginTaskEvent::Ended {
                resource,
                number,
                why,
            } => self.ended(&resource, number, &why),
        }
    }

    /// Accepts a registration; it is written to disk before it is answered.
    fn take(&mut self, resource: ResourceName, connection: PluginConnection) -> Result<(), String> {
        if !self.lines.contains_key(&resource) {
            self.make_room()?;
        }
        let name = &self.vendor.name;
        let endpoint = connection.endpoint.clone();
        if self.log.take() {
            tracing::info!(vendor = %name, resource = %resource, "{resource} is registered by a plugin of {name} on {endpoint}");
        }
        self.shared.board.set(name, None, None);
        self.known.add(&resource, &endpoint);
        self.follow(resource, connection);
        Ok(())
    }

    /// Makes room for one more resource, if needed by dropping one whose grace period is over.
    fn make_room(&mut self) -> Result<(), String> {
        let (now, vendor) = (Instant::now(), &self.vendor);
        let most = vendor.limits.resources;
        if self.lines.len() < most {
            return Ok(());
        }
        let mut given_up = self.lines.iter();
        let given_up = given_up.find(|(_, line)| line.is_grace_over(now, vendor.grace));
        let Some(name) = given_up.map(|(name, _)| name.clone()) else {
            let name = &vendor.name;
            return Err(format!(
                "vendor {name} offers {most} resources already; expected no more than spec.limits.resources"
            ));
        };
        self.lines.remove(&name);
        self.dirty.insert(name);
        self.read_crowded();
        Ok(())
    }

    /// Reads the lists of a plugin until the guard is dropped.
    fn read(&self, resource: &ResourceName, connection: &PluginConnection) -> DropGuard {
        let stopped = self.stop.child_token();
        let following = follow(
            resource.clone(),
            connection.clone(),
            (self.vendor.limits.devices, self.turns.clone()),
            self.to.clone(),
            stopped.clone(),
        );
        self.shared.tasks.spawn("plugin list", following);
        stopped.drop_guard()
    }

    fn follow(&mut self, resource: ResourceName, connection: PluginConnection) {
        let stream = self.read(&resource, &connection);
        let line = self
            .lines
            .entry(resource.clone())
            .or_insert_with(ResourceInstances::new);
        if let Some(oldest) = line.add_registration(connection, stream) {
            self.known.remove(&resource, &oldest);
            self.save_soon();
        }
        self.route(&resource);
    }

    /// Updates the route of a resource.
    fn route(&self, resource: &ResourceName) {
        let line = self.lines.get(resource);
        let to = line.and_then(ResourceInstances::connection).cloned();
        let of = (&self.vendor, &self.looks);
        self.shared.routes.set(of, resource, to);
    }

    /// Handles a known plugin that was reached. If it has registered again meanwhile, perhaps on a
    /// new socket of the same name, that registration counts.
    fn returned(&mut self, resource: ResourceName, connection: PluginConnection) {
        let mut line = self.lines.get(&resource).into_iter();
        let newer = line.any(|line| line.has(&connection.endpoint));
        if newer {
            return;
        }
        let room = self.lines.contains_key(&resource) || self.make_room().is_ok();
        if !room || !self.vendor.may_claim(&resource) {
            self.known.remove(&resource, &connection.endpoint);
            self.save_soon();
            return;
        }
        let (name, endpoint) = (&self.vendor.name, &connection.endpoint);
        tracing::info!(vendor = %name, resource = %resource, "the plugin of {resource} is still running on {endpoint}");
        self.follow(resource, connection);
    }

    /// Handles a known plugin that was not reached. It may have created its socket again and be
    /// about to register, so only the socket that was dialled is removed.
    fn lost(
        &mut self,
        resource: &ResourceName,
        endpoint: &str,
        was: Option<(UnixAddress, Stat)>,
        why: &str,
    ) {
        if self.lines.values().any(|line| line.has(endpoint)) {
            return;
        }
        tracing::info!(vendor = %self.vendor.name, resource = %resource, "the known plugin of {resource} is unreachable: {why}");
        self.known.remove(resource, endpoint);
        self.save_soon();
        let Some((_open, was)) = was else {
            return;
        };
        if let Err(error) = self.directory.remove(endpoint, &was) {
            tracing::warn!(vendor = %self.vendor.name, "{}", machinist_base::error_chain::chain(&error));
        }
    }

    fn refused(&mut self, name: &str, why: &str) {
        let vendor = &self.vendor.name;
        let told = format!("a plugin of {vendor} may not register {name:?}: {why}");
        if let Some(unsaid) = self.told.refused.take(&told) {
            tracing::warn!(vendor = %vendor, unsaid, "{told}");
        }
        let problem = Some(PluginProblem::Refused(told));
        self.shared.board.set(vendor, None, problem);
    }

    fn heard(&mut self, resource: &ResourceName, number: u64, mut list: PluginDeviceList) {
        let elsewhere = self.lines.iter().filter(|(name, _)| *name != resource);
        let elsewhere: usize = elsewhere.map(|(_, line)| line.count()).sum();
        let room = self.vendor.limits.devices.saturating_sub(elsewhere);
        let Some(line) = self.lines.get_mut(resource) else {
            return;
        };
        if list.devices.len() > room {
            let mut devices = (*list.devices).clone();
            list.cut += super::device_list::cut(&mut devices, room);
            list.devices = devices.into();
            self.crowded.insert(resource.clone());
        } else {
            self.crowded.remove(resource);
        }
        let (cut, refused, before) = (list.cut, list.refused, line.count());
        line.record_list(number, list.devices);
        let fewer = line.count() < before;
        let before = self.told.cut.insert(resource.clone(), (cut, refused));
        let most = self.vendor.limits.devices;
        let told = format!(
            "{cut} devices of {resource} are beyond spec.limits.devices ({most}), {refused} have an id that is empty, too long or not plain text; ignoring them"
        );
        let vendor = &self.vendor.name;
        if cut + refused > 0
            && before.unwrap_or_default() != (cut, refused)
            && let Some(unsaid) = self.told.refused.take(&told)
        {
            tracing::warn!(vendor = %vendor, resource = %resource, cut, refused, unsaid, "{told}");
        }
        let problem = (cut + refused > 0).then_some(PluginProblem::Refused(told));
        self.shared.board.set(vendor, Some(resource), problem);
        self.dirty.insert(resource.clone());
        self.route(resource);
        if fewer {
            self.read_crowded();
        }
    }

    /// Reads again the lists that had devices left out for lack of room, now that there is room:
    /// plugins send a list only when something changes.
    pub(super) fn read_crowded(&mut self) {
        for resource in std::mem::take(&mut self.crowded) {
            let line = self.lines.get(&resource);
            let Some(mut connection) = line.and_then(ResourceInstances::connection).cloned() else {
                continue;
            };
            // With a new number, a last list of the old stream is ignored.
            connection.number = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
            let stream = self.read(&resource, &connection);
            if let Some(line) = self.lines.get_mut(&resource) {
                line.read_again(connection, stream);
            }
            self.route(&resource);
        }
    }

    fn ended(&mut self, resource: &ResourceName, number: u64, why: &str) {
        let Some(line) = self.lines.get_mut(resource) else {
            return;
        };
        let Some(endpoint) = line.record_stream_end(number) else {
            return;
        };
        let name = &self.vendor.name;
        if self.log.take() {
            tracing::info!(vendor = %name, resource = %resource, "the plugin of {resource} on {endpoint} ended: {why}");
        }
        if line.is_empty() {
            self.shared.board.set(name, Some(resource), None);
            self.lines.remove(resource);
        } else if line.connection().is_none() {
            let grace = self.vendor.grace.as_secs();
            let why = format!(
                "the plugin of {resource} ended: {why}; its devices keep their health for {grace} s"
            );
            let problem = Some(PluginProblem::Away(why));
            self.shared.board.set(name, Some(resource), problem);
        }
        self.known.remove(resource, &endpoint);
        self.save_soon();
        self.dirty.insert(resource.clone());
        self.route(resource);
    }
}
