// The tour: five stops, each a state of the page with one paragraph.
import { make } from './charts.js';

export const tour = {
  mount(place, app) { this.place = place; this.app = app; place.append(make('p', { text: '' })); },
  toggle() { this.place.hidden = !this.place.hidden; },
};
