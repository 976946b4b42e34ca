//! The event handlers of a vendor's task.

use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{ProxyVendorTask, plugin_log::IgnoredDevices};
use crate::plugin_proxy::{
    PluginProblem,
    device_list::{self, PluginDeviceList},
    list_stream::follow,
    plugin_client::PluginConnection,
    resource_instances::ResourceInstances,
    task_events::PluginTaskEvent,
};
use machinist_device::ResourceName;
use machinist_rootfs::{Stat, UnixAddress};

impl ProxyVendorTask {
    pub(super) fn handle_event(&mut self, event: PluginTaskEvent) {
        match event {
            PluginTaskEvent::Registered {
                resource,
                connection,
                reply,
            } => {
                match self.accept_registration(resource, connection) {
                    Ok(()) => self.registrations.write_before(reply),
                    // If the plugin gave up waiting, the answer is not needed.
                    Err(reason) => drop(reply.send(Err(reason))),
                }
            }
            PluginTaskEvent::Reconnected {
                resource,
                connection,
            } => self.accept_reconnected(resource, connection),
            PluginTaskEvent::DialFailed {
                resource,
                endpoint,
                dialled_socket,
                reason,
            } => self.remove_unreachable(&resource, &endpoint, dialled_socket, &reason),
            PluginTaskEvent::ServerEnded { reason } => {
                let vendor = &self.vendor.name;
                if self.log.take_connection_line() {
                    tracing::warn!(vendor = %vendor, "the registration server of {vendor} failed: {reason}");
                }
                self.server.schedule_restart();
            }
            PluginTaskEvent::RegistrationRefused { name, reason } => {
                self.record_refusal(&name, &reason)
            }
            PluginTaskEvent::ListReceived {
                resource,
                number,
                list,
            } => self.record_list(&resource, number, list),
            PluginTaskEvent::StreamEnded {
                resource,
                number,
                reason,
            } => self.record_stream_end(&resource, number, &reason),
        }
    }

    /// Accepts a registration; it is written to disk before it is answered.
    fn accept_registration(
        &mut self,
        resource: ResourceName,
        connection: PluginConnection,
    ) -> Result<(), String> {
        if !self.resources.contains_key(&resource) {
            self.ensure_capacity()?;
        }
        let name = &self.vendor.name;
        let endpoint = connection.endpoint.clone();
        if self.log.take_connection_line() {
            tracing::info!(vendor = %name, resource = %resource, "{resource} is registered by a plugin of {name} on {endpoint}");
        }
        self.deps.problems.set(name, None, None);
        self.registrations.add(&resource, &endpoint);
        self.add_instance(resource, connection);
        Ok(())
    }

    /// Makes room for one more resource, if needed by dropping one whose grace period is over.
    fn ensure_capacity(&mut self) -> Result<(), String> {
        let (now, vendor) = (Instant::now(), &self.vendor);
        let max = vendor.limits.resources;
        if self.resources.len() < max {
            return Ok(());
        }
        let mut resources = self.resources.iter();
        let abandoned = resources.find(|(_, instances)| instances.is_grace_over(now, vendor.grace));
        let Some(name) = abandoned.map(|(name, _)| name.clone()) else {
            let name = &vendor.name;
            return Err(format!(
                "vendor {name} offers {max} resources already; expected no more than spec.limits.resources"
            ));
        };
        self.resources.remove(&name);
        self.offers.mark_changed(name);
        self.restart_truncated_lists();
        Ok(())
    }

    /// Reads the lists of a plugin until the guard is dropped.
    fn start_list_stream(
        &self,
        resource: &ResourceName,
        connection: &PluginConnection,
    ) -> DropGuard {
        let stopped = self.stop.child_token();
        let stream = follow(
            resource.clone(),
            connection.clone(),
            (self.vendor.limits.devices, self.decode_turn.clone()),
            self.event_sender.clone(),
            stopped.clone(),
        );
        self.deps.tasks.spawn("plugin list", stream);
        stopped.drop_guard()
    }

    fn add_instance(&mut self, resource: ResourceName, connection: PluginConnection) {
        let stream = self.start_list_stream(&resource, &connection);
        let instances = self
            .resources
            .entry(resource.clone())
            .or_insert_with(ResourceInstances::new);
        if let Some(oldest) = instances.add_registration(connection, stream) {
            self.registrations.remove(&resource, &oldest);
        }
        self.update_route(&resource);
    }

    /// Updates the route of a resource.
    fn update_route(&self, resource: &ResourceName) {
        let instances = self.resources.get(resource);
        let connection = instances.and_then(ResourceInstances::connection).cloned();
        let vendor = (&self.vendor, &self.path_checker);
        self.deps.routes.set(vendor, resource, connection);
    }

    /// Handles a known plugin that was reached. If it has registered again meanwhile, perhaps on a
    /// new socket of the same name, that registration counts.
    fn accept_reconnected(&mut self, resource: ResourceName, connection: PluginConnection) {
        let instances = self.resources.get(&resource);
        if instances.is_some_and(|instances| instances.has(&connection.endpoint)) {
            return;
        }
        let has_room = self.resources.contains_key(&resource) || self.ensure_capacity().is_ok();
        if !has_room || !self.vendor.may_claim(&resource) {
            self.registrations.remove(&resource, &connection.endpoint);
            return;
        }
        let (name, endpoint) = (&self.vendor.name, &connection.endpoint);
        if self.log.take_connection_line() {
            tracing::info!(vendor = %name, resource = %resource, "the plugin of {resource} is still running on {endpoint}");
        }
        self.add_instance(resource, connection);
    }

    /// Handles a known plugin that was not reached. It may have created its socket again and be
    /// about to register, so only the socket that was dialled is removed.
    fn remove_unreachable(
        &mut self,
        resource: &ResourceName,
        endpoint: &str,
        dialled_socket: Option<(UnixAddress, Stat)>,
        reason: &str,
    ) {
        if self
            .resources
            .values()
            .any(|instances| instances.has(endpoint))
        {
            return;
        }
        if self.log.take_connection_line() {
            tracing::info!(vendor = %self.vendor.name, resource = %resource, "the known plugin of {resource} is unreachable: {reason}");
        }
        self.registrations.remove(resource, endpoint);
        let Some((_open, stat)) = dialled_socket else {
            return;
        };
        if let Err(error) = self.directory.remove(endpoint, &stat)
            && self.log.take_connection_line()
        {
            tracing::warn!(vendor = %self.vendor.name, "{}", machinist_base::error_chain::chain(&error));
        }
    }

    fn record_refusal(&mut self, name: &str, reason: &str) {
        let vendor = &self.vendor.name;
        let message = format!("a plugin of {vendor} may not register {name:?}: {reason}");
        if let Some(suppressed) = self.log.take_refusal(&message) {
            tracing::warn!(vendor = %vendor, suppressed, "{message}");
        }
        let problem = Some(PluginProblem::Refused(message));
        self.deps.problems.set(vendor, None, problem);
    }

    fn record_list(&mut self, resource: &ResourceName, number: u64, mut list: PluginDeviceList) {
        let others = self.resources.iter().filter(|(name, _)| *name != resource);
        let others: usize = others.map(|(_, instances)| instances.count()).sum();
        let room = self.vendor.limits.devices.saturating_sub(others);
        let Some(instances) = self.resources.get_mut(resource) else {
            return;
        };
        if list.devices.len() > room {
            let mut devices = (*list.devices).clone();
            list.cut += device_list::cut(&mut devices, room);
            list.devices = devices.into();
            self.truncated_lists.insert(resource.clone());
        } else {
            self.truncated_lists.remove(resource);
        }
        let ignored = IgnoredDevices {
            excess: list.cut,
            invalid: list.refused,
        };
        let count_before = instances.count();
        instances.record_list(number, list.devices);
        let has_fewer = instances.count() < count_before;
        let is_new = self.log.record_ignored(resource, ignored);
        let (max, cut, refused) = (self.vendor.limits.devices, ignored.excess, ignored.invalid);
        let message = format!(
            "{cut} devices of {resource} are beyond spec.limits.devices ({max}), {refused} have an id that is empty, too long or not plain text; ignoring them"
        );
        let vendor = &self.vendor.name;
        if ignored.is_any()
            && is_new
            && let Some(suppressed) = self.log.take_refusal(&message)
        {
            tracing::warn!(vendor = %vendor, resource = %resource, cut, refused, suppressed, "{message}");
        }
        let problem = ignored.is_any().then_some(PluginProblem::Refused(message));
        self.deps.problems.set(vendor, Some(resource), problem);
        self.offers.mark_changed(resource.clone());
        self.update_route(resource);
        if has_fewer {
            self.restart_truncated_lists();
        }
    }

    /// Reads again the lists that had devices left out for lack of room, now that there is room:
    /// plugins send a list only when something changes.
    pub(super) fn restart_truncated_lists(&mut self) {
        for resource in std::mem::take(&mut self.truncated_lists) {
            let instances = self.resources.get(&resource);
            let Some(mut connection) = instances.and_then(ResourceInstances::connection).cloned()
            else {
                continue;
            };
            // With a new number, a last list of the old stream is ignored.
            connection.number = self.deps.connection_numbers.fetch_add(1, Ordering::Relaxed);
            let stream = self.start_list_stream(&resource, &connection);
            if let Some(instances) = self.resources.get_mut(&resource) {
                instances.replace_stream(connection, stream);
            }
            self.update_route(&resource);
        }
    }

    fn record_stream_end(&mut self, resource: &ResourceName, number: u64, reason: &str) {
        let Some(instances) = self.resources.get_mut(resource) else {
            return;
        };
        let Some(endpoint) = instances.record_stream_end(number) else {
            return;
        };
        let name = &self.vendor.name;
        if self.log.take_connection_line() {
            tracing::info!(vendor = %name, resource = %resource, "the plugin of {resource} on {endpoint} ended: {reason}");
        }
        if instances.is_empty() {
            self.deps.problems.set(name, Some(resource), None);
            self.resources.remove(resource);
        } else if instances.connection().is_none() {
            let grace = self.vendor.grace.as_secs();
            let message = format!(
                "the plugin of {resource} ended: {reason}; its devices keep their health for {grace} s"
            );
            let problem = Some(PluginProblem::Unreachable(message));
            self.deps.problems.set(name, Some(resource), problem);
        }
        self.registrations.remove(resource, &endpoint);
        self.offers.mark_changed(resource.clone());
        self.update_route(resource);
    }
}
