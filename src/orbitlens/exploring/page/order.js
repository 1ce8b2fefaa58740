// The room.
import { make } from './charts.js';

export const order = {
  mount(place) { place.append(make('p', { class: 'absent', text: 'This room is being furnished.' })); },
  show() {},
  hide() {},
};
